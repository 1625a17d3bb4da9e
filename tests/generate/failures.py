"""docs/reference/failures.md: every failure in the order in which people meet them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.lab import pages
from tests.lab.upstream import SAME_REPORT
from vlmpatch.catalog import read
from vlmpatch.catalog.location import default_path
from vlmpatch.tools.cases import Case
from vlmpatch.tools.explain import failures
from vlmpatch.tools.explain.failures import Failure
from vlmpatch.tools.view.language import Words

WORDS = {
    "en": {
        "title": "# Failures",
        "intro": (
            "What goes wrong where gradient checkpointing meets DDP, ZeRO and LoRA in "
            "vision-language models, why, since when, and which patch fixes it, in the order in "
            "which people meet them. *Fixed* means that the run trains, every parameter that gets "
            "a gradient without checkpointing gets one with it, and the gradients equal those "
            "without checkpointing on every rank. [compatibility.md](compatibility.md) has the "
            "runs that show it; `python -m vlmpatch explain F4` prints one of these, `python -m "
            "vlmpatch explain train.log` finds the one that a log shows.\n\n"
            "Two words run through all of it. **Reentrant** checkpointing (`use_reentrant=True`) "
            "runs a nested backward for each checkpointed segment; **non-reentrant** recomputes "
            "the segment inside the one backward."
        ),
        "failure": "failure",
        "see": "what you see",
        "seen": "- **Seen:** {text}.",
        "where": "- **Where:** {text}.",
        "ended": "**Fixed by**",
        "open": "**No patch of its own;** the advice helps.",
        "advice": "**Advice:** {text}",
        "rows": "**Runs that show it:** {text} in [compatibility.md](compatibility.md).",
        "reported": "**The newest releases have it; reported:** {text}.",
        "unreported": "**The newest releases have it; not reported yet.**",
        "stays": "**The newest releases have it too, and there is nothing to report:** {text}.",
        "report": " {place} has a reproduction, the smallest change and the text of a report.",
        "foreign": "## What vlmpatch does not fix",
        "foreigners": "`explain` recognises these too, so that nobody looks for a patch that does not exist.",
        "head": ("what it is", "why", "what to do"),
        "join": ", ",
    },
    "zh": {
        "title": "# 已知问题",
        "intro": (
            "视觉语言模型里，梯度检查点遇上 DDP、ZeRO、LoRA 时会出什么问题、原因是什么、"
            "涉及哪些版本、由哪个补丁解决；按用户遇到的先后排列。“解决”的意思是：训练能跑；"
            "不开检查点时有梯度的参数，开了检查点同样有梯度；每个 rank 上的梯度都与不开检查点时相同。"
            "实际运行结果见 [compatibility.md](compatibility.md)；`python -m vlmpatch explain F4` "
            "显示其中一项，`python -m vlmpatch explain train.log` 找出一份日志属于哪一项。\n\n"
            "下面反复出现两个词。**reentrant** "
            "检查点（`use_reentrant=True`）为每个检查点段单独跑一次嵌套的反向；**non-reentrant** "
            "则在同一次反向之内重算该段。"
        ),
        "failure": "问题",
        "see": "看到的现象",
        "seen": "- **现象：** {text}。",
        "where": "- **场景：** {text}。",
        "ended": "**由以下补丁解决**",
        "open": "**没有专门的补丁；** 请按建议处理。",
        "advice": "**建议：** {text}",
        "rows": "**相关实测：** [compatibility.md](compatibility.md) 中的 {text}。",
        "reported": "**最新版本仍有此问题；已报告：** {text}。",
        "unreported": "**最新版本仍有此问题；尚未报告。**",
        "stays": "**最新版本同样如此，没有可以报告的：**{text}。",
        "report": " {place} 中有复现脚本、最小改动和报告正文。",
        "foreign": "## vlmpatch 不解决的问题",
        "foreigners": "`explain` 也能认出这些问题，以免用户去找并不存在的补丁。",
        "head": ("是什么", "原因", "怎么办"),
        "join": "、",
    },
}
ROOT = Path(default_path()).parent
KNOWN = failures.read(default_path())
CATALOG = read.read(default_path())


def page(language: str, rows: Iterable[Case]) -> str:
    """The page in one language; ``rows`` are the runs of the matrix."""
    words, say = WORDS[language], Words(language)
    shown: dict[str, list[str]] = {}
    for row in rows:
        for id_ in row.failures:
            shown.setdefault(id_, []).append(f"`{row.id}`")
    ours = [each for each in KNOWN.known.values() if not each.foreign]
    foreign = [each for each in KNOWN.known.values() if each.foreign]
    parts = [
        words["title"],
        pages.in_other_language(language, "failures"),
        words["intro"],
        _index(ours, language),
    ]
    for failure in ours:
        parts += section(failure, shown.get(failure.id, []), language)
    parts += [words["foreign"], words["foreigners"]]
    body = [(say.pick(each.title), say.pick(each.cause), _advice(each, language)) for each in foreign]
    parts.append(pages.table(words["head"], body))
    return "\n\n".join(str(part) for part in parts) + "\n"


def _index(ours: list[Failure], language: str) -> str:
    words, say = WORDS[language], Words(language)
    body = [(f"[{each.id}](#{each.id.lower()}) {say.pick(each.title)}", say.pick(each.see)) for each in ours]
    return pages.table((str(words["failure"]), str(words["see"])), body)


def section(failure: Failure, rows: list[str], language: str) -> Iterator[str]:
    """What is known of one failure."""
    words, say = {key: str(value) for key, value in WORDS[language].items()}, Words(language)
    yield f'<a id="{failure.id.lower()}"></a>\n\n## {failure.id} · {say.pick(failure.title)}'
    seen = [words["seen"].format(text=say.pick(failure.see))]
    where = [words["where"].format(text=linked(say.pick(failure.where)))]
    yield "\n".join(seen + where)
    yield linked(say.pick(failure.cause))
    if failure.prose[0]:
        yield pages.rebased(linked(say.pick(failure.prose)), "..")
    if ending := failure.patches(CATALOG):
        listed = [f"- [`{e.id}`](patches.md#{e.id}): {say.pick((e.summary, e.summary_zh))}" for e in ending]
        yield "\n".join([words["ended"], "", *listed])
    else:
        yield words["open"]
    yield words["advice"].format(text=_advice(failure, language))
    if rows:
        yield words["rows"].format(text=words["join"].join(rows))
    yield from upstream(failure, language)


def upstream(failure: Failure, language: str, linked: bool = True) -> Iterator[str]:
    """Whether upstream was told of what its newest releases have; else what is ready for that.

    Args:
        failure: of which.
        language: of the page.
        linked: whether the page lies in the repository, and can lead to what is ready.
    """
    words = {key: str(value) for key, value in WORDS[language].items()}
    if failure.stays[0]:
        yield words["stays"].format(text=failure.stays[language == "zh"])
    if failure.reported is None:
        return
    told = words["reported"].format(text=words["join"].join(failure.reported))
    yield (told if failure.reported else words["unreported"]) + _ready(failure, language, linked)


def _ready(failure: Failure, language: str, linked: bool) -> str:
    """Where a report lies that can be sent."""
    case = failure.file.removesuffix(".toml")
    folder = f"upstream/{SAME_REPORT.get(case, case)}"
    if not (ROOT / folder).is_dir():
        return ""
    path = "../" * (2 + (language == "zh")) + f"{folder}/report.md"
    place = f"[`{folder}`]({path})" if linked else f"`{folder}`"
    return str(WORDS[language]["report"]).format(place=place)


def _advice(failure: Failure, language: str) -> str:
    lines = failure.advice[language == "zh"]
    return " · ".join(_quoted(line) for line in lines)


def _quoted(line: str) -> str:
    """A line of advice as it is shown: a sentence as it stands, code as code with its remark beside it."""
    code, _, remark = line.partition("  # ")
    if re.match(r"[A-Z][a-z]+ |[\u4e00-\u9fff]", code):
        return line
    ticks = "``" if "`" in code else "`"
    return f"{ticks}{code}{ticks}" + (f" ({remark})" if remark else "")


def linked(text: str) -> str:
    """``text`` whose failures, by number, lead to their sections; what is quoted stays as it is."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _NUMBER.sub(_link, part) for part in parts)


_NUMBER = re.compile(r"(?<![\w\[])F\d+\b")


def _link(match: re.Match[str]) -> str:
    return f"[{match[0]}](#{match[0].lower()})" if match[0] in KNOWN.known else match[0]
