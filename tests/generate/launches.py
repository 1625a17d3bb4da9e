"""docs/reference/launches.md: scripts that public projects ship, and what doctor says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.lab import launches, pages
from tests.lab.launches import Shipped

WORDS = {
    "en": {
        "title": "# Launch scripts that projects ship",
        "intro": (
            "What `python -m vlmpatch doctor --command` understands of {count} scripts of {repositories} "
            "public repositories, judged with {installed}; the codes are [doctor's](doctor-codes.md). "
            "*goes wrong*: without vlmpatch. *left*: with it too. The record is `data/launches.csv`, with "
            "commits and digests; `python -m tests.lab.launches SOURCES` examines the scripts again."
        ),
        "head": ("script", "understood", "goes wrong", "fixed by", "left", "worth knowing"),
        "training": "no training",
        "failure": "nothing known",
    },
    "zh": {
        "title": "# 各项目自带的启动脚本",
        "intro": (
            "`python -m vlmpatch doctor --command` 对 {repositories} 个公开仓库的 {count} 个脚本的理解，"
            "按 {installed} 判断；代码见 [doctor 的代码](doctor-codes.md)。"
            "*会出问题*：不用 vlmpatch 时。*仍会发生*：使用后依然存在。记录在 `data/launches.csv`,"
            "含 commit 与摘要；`python -m tests.lab.launches SOURCES` 重新检查这些脚本。"
        ),
        "head": ("脚本", "理解", "会出问题", "由其解决", "仍会发生", "值得知道"),
        "training": "没有训练",
        "failure": "没有已知问题",
    },
}


def page(language: str) -> str:
    """The page in one language."""
    words, shipped = WORDS[language], launches.read()
    intro = str(words["intro"]).format(
        count=len(shipped),
        repositories=len({each.repository for each in shipped}),
        installed=", ".join(f"{name} {version}" for name, version in launches.INSTALLED.items()),
    )
    rows = pages.table(words["head"], (_row(each, words) for each in shipped))
    link = pages.in_other_language(language, "launches")
    return "\n\n".join([str(words["title"]), link, intro, rows]) + "\n"


def _row(shipped: Shipped, words: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    seen = "<br>".join(f"`{each}`" for each in shipped.understood.split("; ") if each)
    wrong = _codes(shipped.wrong) or (str(words["failure"]) if seen else "")
    ended = "<br>".join(_ended(word) for word in shipped.ended.replace(";", "").split())
    url = f"https://github.com/{shipped.repository}/blob/{shipped.commit}/{shipped.script}"
    place = f"{shipped.repository} [{shipped.script.rpartition('/')[2]}]({url})"
    known = (wrong, ended, _codes(shipped.left), _codes(shipped.notes))
    return place, seen or str(words["training"]), *known


def _codes(text: str) -> str:
    return ", ".join(dict.fromkeys(text.replace(";", " ").split()))


def _ended(word: str) -> str:
    code, _, ids = word.partition(":")
    return f"{code}: {', '.join(f'`{id_}`' for id_ in ids.split(','))}"
