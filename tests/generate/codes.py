"""docs/reference/doctor-codes.md: what each of doctor's codes means."""

from __future__ import annotations

from tests.lab import pages
from vlmpatch.tools.codes import Code, read
from vlmpatch.tools.view.language import Words

WORDS = {
    "en": {
        "title": "# Doctor's codes",
        "intro": (
            "What `python -m vlmpatch doctor` can find: **D** in the environment, **L** in a "
            "launch line and its configurations. A code keeps its meaning. What a patch ends in "
            "this environment is a note, not a warning. `python -m vlmpatch explain L05` prints "
            "one of them; [doctor.md](../doctor.md) is about the command."
        ),
        "head": ("code", "what it says", "why", "what to do"),
        "failures": " ({ids})",
        "join": ", ",
    },
    "zh": {
        "title": "# doctor 的代码",
        "intro": (
            "`python -m vlmpatch doctor` 能发现的问题：**D** 属于环境，**L** 属于启动命令及其配置。"
            "代码的含义不会改变。在当前环境由补丁解决的问题只作提示，不算警告。`python -m vlmpatch "
            "explain L05` 显示其中一项；命令本身见 [doctor.md](../doctor.md)。"
        ),
        "head": ("代码", "含义", "原因", "怎么办"),
        "failures": "({ids})",
        "join": "、",
    },
}


def page(language: str) -> str:
    """The page in one language."""
    words = WORDS[language]
    rows = pages.table(words["head"], (_row(code, language) for code in read().values()))
    link = pages.in_other_language(language, "doctor-codes")
    return "\n\n".join([str(words["title"]), link, str(words["intro"]), rows]) + "\n"


def _row(code: Code, language: str) -> tuple[str, ...]:
    words, say = WORDS[language], Words(language)
    cause = say.pick(code.cause)
    if code.failures:
        listed = str(words["join"]).join(f"[{id_}](failures.md#{id_.lower()})" for id_ in code.failures)
        cause += str(words["failures"]).format(ids=listed)
    return f'<a id="{code.id.lower()}"></a>{code.id}', say.pick(code.title), cause, say.pick(code.remedy)
