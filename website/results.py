"""What the matrix measured: a row a situation, with filters in place of a column a stack.

Every mark is in the page; ``results.js`` hides those that the filters leave out and counts the rest.
"""

from __future__ import annotations

import functools
import html
import json
from collections import Counter
from collections.abc import Iterable, Mapping

from packaging.version import Version

from tests.matrix import render, rows
from tests.matrix.store import Store
from vlmpatch.tools.cases import Case

MARKS = {render.FIXED: "fixed", render.RIGHT: "right", render.OVERRULED: "fixed", render.WRONG: "wrong"}
ENGINES = {
    "none": "–",
    "ddp": "DDP",
    "ddp_unused": "DDP",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "fsdp1": "FSDP",
    "fsdp2": "FSDP2",
}
FAMILIES = {
    "qwen2_vl": "Qwen2-VL",
    "qwen2_5_vl": "Qwen2.5-VL",
    "qwen3_vl": "Qwen3-VL",
    "qwen3_moe": "Qwen3-MoE",
    "llava": "LLaVA",
    "llava_mlcd": "LLaVA",
    "internvl": "InternVL",
    "internvl_repo": "InternVL",
    "mllama": "Llama-3.2-Vision",
    "qwen2_audio": "Qwen2-Audio",
    "gemma3": "Gemma 3",
    "minicpmv4_6": "MiniCPM-V 4.6",
    "phi4_multimodal": "Phi-4-multimodal",
    "glm4v_moe": "GLM-4.5V",
    "deepseek_v3": "DeepSeek-V3",
    "timm_repo": "timm",
}
SCRIPT = "MiniCPM-V"
PACKAGES = ("transformers", "deepspeed", "torch")
COLUMNS = ("torch", "transformers", "deepspeed", "peft")
WORDS = {
    "en": {
        "find": "Filter: a situation, a failure",
        "all": "all",
        "engine": "engine",
        "family": "model family",
        "framework": "framework",
        "situation": "situation",
        "failure": "failure",
        "result": "result",
        "about": "## How it was measured",
        "none": "No measured run fits these filters.",
        "shown": "{rows} situations, {runs} runs",
    },
    "zh": {
        "find": "筛选：场景、问题",
        "all": "全部",
        "engine": "引擎",
        "family": "模型系列",
        "framework": "框架",
        "situation": "场景",
        "failure": "问题",
        "result": "结果",
        "about": "## 怎样测量的",
        "none": "没有符合这些条件的实测。",
        "shown": "{rows} 个场景，{runs} 次运行",
    },
}


@functools.cache
def measured() -> render.Measured:
    """The results, judged."""
    return render.Measured(Store())


@functools.cache
def _versions() -> dict[str, Mapping[str, str]]:
    return {name: rows.versions(stack) for name, stack in measured().stacks.items()}


def row_of(stack: str) -> tuple[str, ...]:
    """A stack with its versions, as a line of a table."""
    installed = _versions()[stack]
    return (f"`{stack}`", *(installed.get(name, "") for name in COLUMNS), framework(stack))


def framework(stack: str) -> str:
    """The framework that a stack is for, with its version, if there is one."""
    own = rows.framework(measured().stacks[stack])
    return f"{render.NAMES[own]} {_versions()[stack][own]}" if own else ""


def of_failure(id_: str, language: str) -> list[tuple[str, str]]:
    """The situations that show one failure, each with its marks."""
    return [
        (f"{html.escape(getattr(row, language))}<br>`{row.id}`", marks(row))
        for row in measured_rows()
        if id_ in row.failures
    ]


def measured_rows() -> list[Case]:
    """The situations that were run on one stack at least."""
    return [row for row in measured().rows.values() if _stacks(row)]


def marks(row: Case) -> str:
    """How one situation ended on every stack: counted, and one by one when it is opened."""
    found = {stack: measured().symbol(stack, row) for stack in _stacks(row)}
    counted = Counter(symbol.removesuffix(render.EARLIER) for symbol in found.values())
    summary = " ".join(_span(kind, f" × {count}") for kind, count in counted.items())
    listed = "".join(_mark(stack, symbol) for stack, symbol in found.items())
    return f'<details class="vp-marks"><summary>{summary}</summary><ul>{listed}</ul></details>'


def _stacks(row: Case) -> list[str]:
    return [stack for stack in measured().stacks if measured().symbol(stack, row) != render.ABSENT]


def _mark(stack: str, symbol: str) -> str:
    kind, installed = symbol.removesuffix(render.EARLIER), _versions()[stack]
    shown = {"tf": "transformers", "ds": "deepspeed", "torch": "torch"}
    named = [f"{short} {installed[name]}" for short, name in shown.items() if name in installed]
    listed = ", ".join(filter(None, [framework(stack), *named]))
    marked = _span(kind, "*" if symbol != kind else "")
    return f'<li data-stack="{stack}" data-kind="{MARKS[kind]}">{marked} <code>{stack}</code> {listed}</li>'


def _span(kind: str, more: str) -> str:
    return f'<span class="vp-{MARKS[kind]}">{kind.replace("**", "")}{more}</span>'


# --- the page -------------------------------------------------------------------------------------------


def page(language: str) -> str:
    """The compatibility page: its text as it is in docs/reference, its three tables as one with filters."""
    said, words = render.WORDS[language], WORDS[language]
    before, _, rest = render.page(measured(), language).partition(said["table"])
    about = before.replace(said["title"], "").replace(said["legend"], "").strip()
    after = rest[rest.index(said["stacks"]) :]
    front = "---\nhide: [toc]\n---"
    table = [said["legend"].rpartition(" · ")[0], _filters(words), _table(language)]
    return "\n\n".join([front, said["title"], *table, words["about"], about, said["aboutscripts"], after])


def _filters(words: Mapping[str, str]) -> str:
    choices = {name: _newest_first(name) for name in PACKAGES}
    choices["engine"] = sorted({engine(row) for row in measured_rows()} - {ENGINES["none"]})
    choices["family"] = sorted({family(row) for row in measured_rows()})
    choices["framework"] = sorted({_name(stack) for stack in measured().stacks} - {""})
    selects = "".join(_select(name, values, words) for name, values in choices.items())
    attributes = f'data-shown="{words["shown"]}" data-none="{words["none"]}"'
    box = f'<input type="search" name="text" aria-label="{words["find"]}" placeholder="{words["find"]}">'
    inside = f"{selects}<label>{box}</label><output></output>"
    return f'<form class="vp-filters" hidden {attributes}>{inside}</form>'


def _select(name: str, values: Iterable[str], words: Mapping[str, str]) -> str:
    options = "".join(f"<option>{value}</option>" for value in values)
    options = f'<option value="">{words["all"]}</option>{options}'
    return f'<label>{words.get(name, name)}<select name="{name}">{options}</select></label>'


def _newest_first(name: str) -> list[str]:
    known = {installed[name] for installed in _versions().values() if name in installed}
    return sorted(known, key=Version, reverse=True)


def engine(row: Case) -> str:
    """What a row trains with, as people name it."""
    script = rows.script(row)
    return ENGINES[script.engine if script else row.cell.engine]


def family(row: Case) -> str:
    """The model family of a row, as people name it."""
    return SCRIPT if row.how == "script" else FAMILIES[row.cell.kind]


def _table(language: str) -> str:
    words = WORDS[language]
    head = "".join(f"<th>{words[name]}</th>" for name in ("situation", "failure", "result"))
    body = "".join(_row(row, language) for row in measured_rows())
    stacks = html.escape(json.dumps({name: _filtered_by(name) for name in measured().stacks}))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="vp-results" data-stacks="{stacks}">{table}</div>'


def _filtered_by(stack: str) -> dict[str, str]:
    versions = {name: _versions()[stack].get(name, "") for name in PACKAGES}
    return versions | {"framework": _name(stack)}


def _name(stack: str) -> str:
    name = rows.framework(measured().stacks[stack])
    return render.NAMES.get(name, name)


def _row(row: Case, language: str) -> str:
    links = " ".join(f'<a href="failures/{id_}.html">{id_}</a>' for id_ in row.failures)
    cells = (f"{html.escape(getattr(row, language))}<br><code>{row.id}</code>", links, marks(row))
    inside = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr data-engine="{engine(row)}" data-family="{family(row)}">{inside}</tr>'
