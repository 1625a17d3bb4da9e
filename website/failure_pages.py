"""A page a failure, and the page that lists them all."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from tests.generate import figures
from tests.generate.failures import CATALOG, KNOWN, linked, upstream
from tests.lab import pages as docs
from tests.matrix import field_reports
from vlmpatch.tools.explain.failures import Failure
from vlmpatch.tools.view.language import Words
from website import results

SOURCE = {"en": "docs/reference/failures.md", "zh": "docs/zh-CN/reference/failures.md"}
WIDE = "---\nhide: [toc]\n---"  # a page that is one table
WORDS = {
    "en": {
        "title": "# Failures",
        "intro": (
            "What goes wrong where gradient checkpointing meets DDP, ZeRO and LoRA in vision-language "
            "models, in the order in which people meet it. Each has a page: what you see, why, since which "
            "version, what fixes it, and where that was measured. Have a traceback? [Paste it](../index.md)."
        ),
        "find": "Filter: an error message, an engine, a version",
        "foreign": "## Not fixed by vlmpatch",
        "foreigners": "`explain` recognises these too, so that nobody looks for a patch that does not exist.",
        "see": "What you see",
        "where": "**Where:** {text}.",
        "why": "## Why",
        "fixed": "## What fixes it",
        "off": "Each can be switched off: `VLMPATCH_DISABLE={ids}`.",
        "open": "No patch of its own; the advice below helps.",
        "without": "## Without vlmpatch",
        "more": "## In detail",
        "measured": "## Measured on",
        "legend": "Two ranks, compared with a run without checkpointing; [the marks](compatibility.md).",
        "reports": "## Public reports",
    },
    "zh": {
        "title": "# 已知问题",
        "intro": (
            "视觉语言模型里，梯度检查点遇上 DDP、ZeRO、LoRA 时会出什么问题，按用户遇到的先后排列。"
            "每一项有自己的页面：看到什么、原因、从哪个版本起、由什么修复、在哪些环境实测。"
            "手上有报错？[粘贴到首页](../index.md)。"
        ),
        "find": "筛选：报错信息、引擎、版本",
        "foreign": "## vlmpatch 不解决的问题",
        "foreigners": "`explain` 也能认出这些问题，以免用户去找并不存在的补丁。",
        "see": "看到的现象",
        "where": "**场景：** {text}。",
        "why": "## 原因",
        "fixed": "## 修复它的补丁",
        "off": "都可以关闭：`VLMPATCH_DISABLE={ids}`。",
        "open": "没有专门的补丁；请按下面的建议处理。",
        "without": "## 不用 vlmpatch 时",
        "more": "## 细节",
        "measured": "## 实测环境",
        "legend": "两个 rank，与不开检查点的运行对照；[标记的含义](compatibility.md)。",
        "reports": "## 公开的报告",
    },
}
HEADS = {
    "en": {
        "all": ("failure", "what you see", "where"),
        "foreign": ("what it is", "why", "what to do"),
        "patches": ("patch", "what it does", "versions"),
        "cases": ("situation", "result"),
        "threads": ("thread", "what was trained", "versions it names", "with vlmpatch"),
    },
    "zh": {
        "all": ("问题", "看到的现象", "场景"),
        "foreign": ("是什么", "原因", "怎么办"),
        "patches": ("补丁", "做什么", "版本"),
        "cases": ("场景", "结果"),
        "threads": ("帖子", "训练内容", "所提版本", "使用 vlmpatch"),
    },
}
FIGURES = {
    "F1": "reentrant",
    "F3": "reentrant",
    "F4": "gathers",
    "F7": "gathers",
    "F11": "ranks",
    "F17": "stale",
}
_SENTENCE = re.compile(r"[A-Z][a-z]+ |[\u4e00-\u9fff]")
_COMMANDS = ("pip ", "python ", "export ", "--")


def pages(language: str) -> Iterator[tuple[str, str, str]]:
    """Address, Markdown and source of each."""
    ours = [each for each in KNOWN.known.values() if not each.foreign]
    yield "failures/index.md", _all(ours, language), SOURCE[language]
    for failure in ours:
        yield f"failures/{failure.id}.md", "\n\n".join(_one(failure, language)) + "\n", SOURCE[language]


def search_box(label: str) -> str:
    """Where ``find.js`` puts a box that filters the tables of the page."""
    return f'<div class="vp-find" data-label="{label}"></div>'


def _all(ours: list[Failure], language: str) -> str:
    words, heads, say = WORDS[language], HEADS[language], Words(language)
    rows = [
        (f"[{e.id}](#{e.id.lower()}) {say.pick(e.title)}", say.pick(e.see), linked(say.pick(e.where)))
        for e in ours
    ]
    others = [
        (say.pick(e.title), say.pick(e.cause), " · ".join(map(_inline, e.advice[language == "zh"])))
        for e in KNOWN.known.values()
        if e.foreign
    ]
    parts = [WIDE, words["title"], words["intro"], search_box(words["find"]), docs.table(heads["all"], rows)]
    parts += [words["foreign"], words["foreigners"], docs.table(heads["foreign"], others)]
    return "\n\n".join(parts) + "\n"


def _one(failure: Failure, language: str) -> Iterator[str]:
    words, heads, say = WORDS[language], HEADS[language], Words(language)
    yield f"# {failure.id} · {say.pick(failure.title)}"
    yield f'!!! failure "{words["see"]}"\n\n    {say.pick(failure.see)}'
    yield words["where"].format(text=linked(say.pick(failure.where)))
    yield words["why"]
    yield linked(say.pick(failure.cause))
    yield words["fixed"]
    yield from _patches(failure, language)
    yield words["without"]
    yield from _advice(failure, language)
    figure = FIGURES.get(failure.id)
    if failure.prose[0] or figure:
        yield words["more"]
    if failure.prose[0]:
        yield docs.rebased(linked(say.pick(failure.prose)), "..")
    if figure:
        yield f"![{figures.WORDS[language][figure]}](../figures/{figure}.svg)"
    if cases := results.of_failure(failure.id, language):
        yield words["measured"]
        yield words["legend"]
        yield docs.table(heads["cases"], cases)
    yield from upstream(failure, language, linked=False)
    if threads := _threads().get(failure.id):
        yield words["reports"]
        lines = [field_reports.line(report, language) for report in threads]
        yield "\n".join([docs.table(heads["threads"], []), *lines])


def _patches(failure: Failure, language: str) -> Iterator[str]:
    words, say = WORDS[language], Words(language)
    ending = failure.patches(CATALOG)
    if not ending:
        yield words["open"]
        return
    rows = [
        (
            f"[`{entry.id}`](patches.md#{entry.id})",
            say.pick((entry.summary, entry.summary_zh)),
            "<br>".join(f"{name} `{range_}`" for name, range_ in entry.requires.items()),
        )
        for entry in ending
    ]
    yield docs.table(HEADS[language]["patches"], rows)
    yield words["off"].format(ids=",".join(entry.id for entry in ending))


def _advice(failure: Failure, language: str) -> Iterator[str]:
    """What helps without vlmpatch: a sentence as it stands, lines to add as blocks."""
    for line in failure.advice[language == "zh"]:
        if _SENTENCE.match(line.partition("  # ")[0]):
            yield line
        else:
            kind = "bash" if line.startswith(_COMMANDS) else "python"
            yield f"```{kind}\n{line}\n```"


def _inline(line: str) -> str:
    return line if _SENTENCE.match(line) else f"`` {line} ``"


@functools.cache
def _threads() -> dict[str, list[field_reports.Table]]:
    """The public threads by failure."""
    data = field_reports.read()
    classes = {kind["id"]: kind.get("failure", "") for kind in data["class"]}
    found: dict[str, list[field_reports.Table]] = {}
    for report in sorted(data["report"], key=lambda report: str(report["url"])):
        found.setdefault(classes[report["class"]], []).append(report)
    return found
