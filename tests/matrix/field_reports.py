"""docs/reference/field-reports.md: public threads, and what becomes of each.

The data is ``data/field-reports.toml``; ``data/field-threads.csv`` lists the threads that were read.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from tests.lab import envs, pages
from tests.matrix import rows
from tests.matrix.store import ROOT, entries
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.model import Entry
from vlmpatch.tools.explain import failures
from vlmpatch.tools.view.language import Words

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DATA = ROOT / "data" / "field-reports.toml"
THREADS = ROOT / "data" / "field-threads.csv"
STATES = ("ended", "told", "upstream", "unclear", "other")
SHOWN = {"transformers": "transformers", "deepspeed": "DeepSpeed", "trl": "TRL", "ms-swift": "ms-swift"}
# An exact version that a thread names; `(as given)` where its error says that it was another.
VERSION = re.compile(r"\b([a-z][a-z-]*) (\d+\.\d(?:[\w.+]*\w)?)(?! \(as given\))(?=,|$)")
BY = re.compile(r"by `([a-z0-9-]+)`")  # in a note
THREAD = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)")
PAGE = re.compile(r"https://(?!github\.com/)([\w.-]+)/\S+")
Table = Mapping[str, Any]

WORDS: dict[str, dict[str, str]] = {
    "en": {
        "title": "# Is my thread here?",
        "intro": (
            "{count} public threads about trainings that fail where gradient checkpointing, DDP, ZeRO and "
            "LoRA meet, and what becomes of each with `import vlmpatch`. Look for yours as "
            "`owner/repository#number`."
        ),
        "legend": (
            "*Fixed*: the failure was reproduced here on the stacks named; the run fails there without "
            "vlmpatch and trains with it, with the gradients of the plain run. This was done on small "
            "models, not by the thread's author; a line or section says so where the model is another than "
            "the thread's. *Explained*: no patch fixes it, but an error, `doctor`, `VLMPATCH_WATCH` or "
            "`explain` names the cause and the remedy. Causes are in [failures.md](failures.md), stacks in "
            "[compatibility.md](compatibility.md), the threads in `data/field-reports.toml`."
        ),
        "ended": "fixed",
        "told": "explained",
        "upstream": "fixed upstream",
        "unclear": "too little information",
        "foreign": "another cause",
        "head": "| thread | what is trained | versions named | with vlmpatch |",
        "seen": "What you see: {seen}.",
        "by": "Fixed by {patches}. Measured with {models} on {stacks}.",
        "nothing": "No patch fixes it; `python -m vlmpatch explain {failure}` has the cause and the remedy.",
        "join": ", ",
        "note": "{state}: {note}",
    },
    "zh": {
        "title": "# 公开帖子及结论",
        "intro": (
            "{count} 个公开帖子：训练在 gradient checkpointing、DDP、ZeRO 与 LoRA 相遇处失败，"
            "以及使用 `import vlmpatch` 之后各自的结果。请用 `owner/repository#编号` 查找你的帖子。"
        ),
        "legend": (
            "“已解决”：问题已在所列环境中复现，不用 vlmpatch 时失败，使用后可以训练，且梯度与普通运行相等。"
            "复现用的是小模型，并非由发帖人验证；模型与帖子不同时，该行或该节会写明。"
            "“已说明”：没有补丁可以解决，但报错、`doctor`、`VLMPATCH_WATCH` 或 `explain` 会给出原因与办法。"
            "原因见 [failures.md](failures.md)，环境见 [compatibility.md](compatibility.md)，"
            "帖子的数据在 `data/field-reports.toml`。"
        ),
        "ended": "已解决",
        "told": "已说明",
        "upstream": "上游已修复",
        "unclear": "信息不足",
        "foreign": "其他原因",
        "head": "| 帖子 | 训练内容 | 所提版本 | 使用 vlmpatch |",
        "seen": "现象：{seen}。",
        "by": "由 {patches} 解决。用 {models} 在 {stacks} 上实测。",
        "nothing": "没有补丁可以解决；原因与办法见 `python -m vlmpatch explain {failure}`。",
        "join": "、",
        "note": "{state}：{note}",
    },
}


def read() -> dict[str, Any]:
    """The data as it is written."""
    return tomllib.loads(DATA.read_text(encoding="utf-8"))


def threads() -> list[str]:
    """The addresses of the threads that were read."""
    with THREADS.open(encoding="utf-8", newline="") as file:
        return [line["url"] for line in csv.DictReader(file)]


def unanswered(data: Mapping[str, Any], wanted: Iterable[str]) -> list[str]:
    """Those of ``wanted`` that ``data`` has no entry for."""
    answered = {report["url"] for report in data["report"]}
    return [url for url in wanted if url not in answered]


def said(table: Table, key: str, language: str) -> str:
    """A text in one language; what has no Chinese is the same in both."""
    value: str = table.get(f"{key}_zh", table[key]) if language == "zh" else table[key]
    return value


def thread(url: str) -> str:
    """``owner/repository#number``, or the host of another page, linked."""
    if other := PAGE.fullmatch(url):
        return f"[{other[1]}]({url})"
    found = THREAD.fullmatch(url)
    if found is None:
        raise ValueError(f"{url} is no thread on GitHub")
    return f"[{found[1]}#{found[2]}]({url})"


def page(data: Mapping[str, Any], language: str) -> str:
    """One language's page."""
    words = WORDS[language]
    counted = Counter(report["state"] for report in data["report"])
    yielded = [
        words["title"],
        pages.in_other_language(language, "field-reports"),
        words["intro"].format(count=len(data["report"])),
    ]
    yielded.append(words["legend"])
    yielded.append(" · ".join(f"{counted[name]} {words[_word(name)]}" for name in STATES if counted[name]))
    for kind in data["class"]:
        yielded += section(kind, [r for r in data["report"] if r["class"] == kind["id"]], language)
    return "\n\n".join(yielded) + "\n"


def section(kind: Table, reports: list[Table], language: str) -> Iterator[str]:
    """A class and its threads."""
    words = WORDS[language]
    yield f"## {heading(kind, language)}"
    if "seen" in kind:
        yield words["seen"].format(seen=said(kind, "seen", language))
    if "patches" in kind:
        patches = words["join"].join(f"`{name}`" for name in kind["patches"])
        models = said(kind, "models", language)
        stacks = words["join"].join(map(stack, kind["measured"]))
        yield words["by"].format(patches=patches, models=models, stacks=stacks)
    elif "seen" in kind and "failure" in kind:
        yield words["nothing"].format(failure=kind["failure"])
    lines = [line(report, language) for report in sorted(reports, key=lambda report: str(report["url"]))]
    yield "\n".join([words["head"], "|---|---|---|---|", *lines])


def heading(kind: Table, language: str) -> str:
    """The class's own title, or that of its failure; a failure's number first."""
    number = kind.get("failure", "")
    own = said(kind, "title", language) if "title" in kind else Words(language).pick(_titles()[number])
    return " · ".join(filter(None, [number, own]))


def _titles() -> dict[str, failures.Pair]:
    return {id_: failure.title for id_, failure in failures.read(default_path()).known.items()}


def stack(name: str) -> str:
    """A stack with the versions that matter."""
    pins = rows.versions(envs.read_stacks()[name])
    return f"{name} ({', '.join(f'{shown} {pins[n]}' for n, shown in SHOWN.items() if n in pins)})"


def line(report: Table, language: str) -> str:
    """One thread."""
    words = WORDS[language]
    state = words[_word(report["state"])]
    if "note" in report:
        state = words["note"].format(state=state, note=said(report, "note", language))
    cells = [thread(report["url"]), said(report, "about", language), report.get("versions", ""), state]
    return f"| {' | '.join(cells)} |"


def _word(state: str) -> str:
    return "foreign" if state == "other" else state


def _by(kind: Table, report: Table) -> list[str]:
    """The patches that are said to end it."""
    return [*kind["patches"], *BY.findall(report.get("note", ""))]


def _in_gate(known: Mapping[str, Entry], id_: str, report: Table) -> bool:
    """Whether a patch is for the versions that the thread names, as far as they are exact."""
    named = dict(VERSION.findall(report.get("versions", "")))
    asked = known[id_].requires.items() if id_ in known else ()
    return all(
        SpecifierSet(specifier).contains(named[name], prereleases=True)
        for name, specifier in asked
        if name in named
    )


def problems(data: Mapping[str, Any]) -> list[str]:
    """What cannot be right in the data."""
    known, stacks = entries().entries, envs.read_stacks()
    classes = {kind["id"]: kind for kind in data["class"]}
    found = []
    for kind in data["class"]:
        found += [f"{kind['id']}: no patch {name}" for name in kind.get("patches", ()) if name not in known]
        found += [f"{kind['id']}: no stack {name}" for name in kind.get("measured", ()) if name not in stacks]
    for report in data["report"]:
        kind = classes.get(report["class"], {})
        if not kind or report["state"] not in STATES:
            found.append(f"{report['url']}: class {report['class']!r}, state {report['state']!r}")
        if report["state"] == "ended" and not kind.get("patches"):
            found.append(f"{report['url']}: fixed by nothing")
        elif report["state"] == "ended" and not any(
            _in_gate(known, id_, report) for id_ in _by(kind, report)
        ):
            found.append(f"{report['url']}: no patch is for {report['versions']}")
        if report["state"] != "ended" and not report.get("note", "").strip():
            found.append(f"{report['url']}: {report['state']}, and nothing says why")
        if ("note" in report) != ("note_zh" in report):
            found.append(f"{report['url']}: a note in one language")
    urls = Counter(report["url"] for report in data["report"])
    return found + [f"{url}: {count} times" for url, count in urls.items() if count > 1]
