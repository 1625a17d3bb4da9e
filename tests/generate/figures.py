"""docs/figures/*.svg: drawn from ``data/traces/*.csv``, which ``python -m bench.traces`` measures.

A figure names its colours by class: on its own it brings a style for light and dark, on a page of the site
that of the page stands. Every event of a trace is in its figure as one element of the class ``event``. Each
is drawn twice: for a wide screen and, as ``*.narrow.svg``, for a phone, which shows its text unscaled.
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.traces_ranks import COLUMNS
from tests.lab import pages, table

TRACES = pages.ROOT / "data" / "traces"
AGAIN = "python -m bench.traces"
STYLE = (
    "<style>text{font:12px sans-serif;fill:#24292f}.title{font-weight:700}.small{font-size:11px}"
    ".rule{stroke:#8b949e;stroke-width:1}.plain{fill:#9fb3c8}.again{fill:#e3b341}.good{fill:#3fa36c}"
    ".wrong{fill:#e5695f}.right{fill:#8b949e}.on{fill:#1b1f24}"
    "@media(prefers-color-scheme:dark){text{fill:#c9d1d9}.on{fill:#1b1f24}}</style>"
)
LETTER, SIGN = 0.55, 1.0  # how wide a letter and a Chinese sign are, beside their height
NORMAL, SMALL = 12, 11
CLOSING = "\u3001\uff0c\uff09\uff1a"  # which begin no line
Row = dict[str, str]

WORDS = {
    "en": {
        "reentrant": "Two forwards, one backward, two checkpointed blocks: what autograd runs, in order",
        "reentrant:reentrant": "reentrant",
        "reentrant:nonreentrant": "non-reentrant",
        "block": "block {n}",
        "forward": "forward",
        "recompute": "recompute",
        "ready": "gradient ready",
        "ready again": "ready a second time: the error of DDP and ZeRO",
        "gathers": "What ZeRO-3 holds of each block during one step (two ranks, full tuning)",
        "gathers:off": "checkpointing off",
        "gathers:stock": "non-reentrant",
        "gathers:vlmpatch": "with vlmpatch",
        "held": "gathered",
        "held since": "gathered, from the recompute on",
        "gathered": "each block gathered {times:.1f} times",
        "ranks": "Gathers that two ranks begin in one forward under ZeRO-3, in order",
        "ranks:stock": "stock",
        "ranks:vlmpatch": "with vlmpatch",
        "rank:0": "rank 0, an image",
        "rank:1": "rank 1, text only",
        "visual": "vision tower",
        "language_model": "language model",
        "waits": "waits for the other rank forever",
        "colon": ": ",
        "stale": "The vision tower's gradient that ZeRO-3 uses in three steps (norm)",
        "step": "step {step}",
        "yes": "with images",
        "no": "no image on any rank",
        "stale:right": "one process, no engine",
        "stale:stock": "ZeRO-3",
        "stale:vlmpatch": "ZeRO-3 with vlmpatch",
    },
    "zh": {
        "reentrant": "两次前向、一次反向、两个检查点块：autograd 依次执行的内容",
        "reentrant:reentrant": "reentrant",
        "reentrant:nonreentrant": "non-reentrant",
        "block": "块 {n}",
        "forward": "前向",
        "recompute": "重算",
        "ready": "梯度就绪",
        "ready again": "第二次就绪：DDP 与 ZeRO 因此报错",
        "gathers": "一步之中 ZeRO-3 持有每个块的多少参数（双进程，全参）",
        "gathers:off": "不开检查点",
        "gathers:stock": "non-reentrant",
        "gathers:vlmpatch": "使用 vlmpatch",
        "held": "已收集",
        "held since": "已收集（重算及其后）",
        "gathered": "每个块收集 {times:.1f} 次",
        "ranks": "ZeRO-3 的一次前向中两个 rank 依次开始的收集",
        "ranks:stock": "不用 vlmpatch",
        "ranks:vlmpatch": "使用 vlmpatch",
        "rank:0": "rank 0，有图像",
        "rank:1": "rank 1，纯文本",
        "visual": "视觉塔",
        "language_model": "语言模型",
        "waits": "一直等待另一个 rank",
        "colon": "：",
        "stale": "ZeRO-3 在三步中使用的视觉塔梯度（范数）",
        "step": "第 {step} 步",
        "yes": "有图像",
        "no": "所有 rank 都没有图像",
        "stale:right": "单进程，不用引擎",
        "stale:stock": "ZeRO-3",
        "stale:vlmpatch": "ZeRO-3 加 vlmpatch",
    },
}


class Sheet(NamedTuple):
    """What a figure is drawn on.

    Args:
        width, left, right: of it, and of its margins; what stands in the left one names a line of boxes.
        stacked: such a name may stand above its line, for there is no room beside it.
    """

    width: int
    left: int
    right: int
    stacked: bool

    @property
    def span(self) -> int:
        """The room between the margins."""
        return self.width - self.left - self.right


WIDE, NARROW = Sheet(760, 96, 24, stacked=False), Sheet(328, 52, 8, stacked=True)


class Drawing:
    """The elements of a figure, and how far down they reach."""

    def __init__(self, sheet: Sheet) -> None:
        self.sheet, self.elements, self.bottom = sheet, list[str](), 0.0

    def text(self, x: float, y: float, said: str, kind: str = "", anchor: str = "start") -> None:
        """One line of text."""
        self.bottom = max(self.bottom, y)
        self.elements.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{html.escape(said)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """A box; each event of a trace is one."""
        self.bottom = max(self.bottom, y + height)
        self.elements.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" class="{kind}"/>'
        )

    def rule(self, y: float, overhang: int = 0) -> None:
        """A line from margin to margin."""
        left, right = self.sheet.left - overhang, self.sheet.width - self.sheet.right
        self.elements.append(f'<line x1="{left}" x2="{right}" y1="{y}" y2="{y}" class="rule"/>')

    def legend(self, y: float, named: dict[str, str]) -> None:
        """What each colour stands for, in as many lines as it takes."""
        start = x = 8.0 if self.sheet.stacked else float(self.sheet.left)
        for kind, said in named.items():
            needed = 17 + _width(said, SMALL)
            if x > start and x + needed > self.sheet.width - 8:
                x, y = start, y + 18
            self.box(x, y - 10, 12, 12, kind)
            self.text(x + 17, y, said, "small")
            x += needed + 20


def wanted() -> dict[Path, str]:
    """Every figure in every language, wide and narrow."""
    return {
        pages.DOCS[language] / "figures" / f"{name}{ending}": figure(name, language, sheet)
        for language in pages.LANGUAGES
        for name in FIGURES
        for ending, sheet in ((".svg", WIDE), (".narrow.svg", NARROW))
    }


def read(name: str) -> list[Row]:
    """The lines of one trace."""
    return [row for _, row in table.read(TRACES / f"{name}.csv", COLUMNS[name], AGAIN)]


def figure(name: str, language: str, sheet: Sheet = WIDE) -> str:
    """One figure as SVG."""
    words, drawing = WORDS[language], Drawing(sheet)
    titles = lines(words[name], sheet.width - 16)
    FIGURES[name](drawing, read(name), words)
    below = 16 * (len(titles) - 1)
    title, drawn = Drawing(sheet), "\n".join(drawing.elements)
    for number, line in enumerate(titles):
        title.text(8, 18 + 16 * number, line, "title")
    view = f"0 0 {sheet.width} {drawing.bottom + below + 12:.0f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view}" '
        f'role="img" aria-label="{html.escape(words[name])}">\n{STYLE}\n' + "\n".join(title.elements) + "\n"
        f'<g transform="translate(0 {below})">\n{drawn}\n</g>\n</svg>\n'
    )


def lines(said: str, width: float) -> list[str]:
    """``said`` in lines of at most ``width``: between words, or beside a Chinese sign."""
    made = [""]
    for piece in re.findall(r"[\u2e80-\uffff]|[^\u2e80-\uffff\s]+\s*|\s+", said):
        if made[-1] and _width(made[-1] + piece.rstrip(), NORMAL, bold=True) > width and piece not in CLOSING:
            made.append("")
        made[-1] += piece
    return [line.strip() for line in made]


def _width(said: str, size: int, *, bold: bool = False) -> float:
    signs = sum(sign > "\u2e7f" for sign in said)
    return size * (signs * SIGN + (len(said) - signs) * LETTER * (1.08 if bold else 1))


def _groups(rows: list[Row], key: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found


def reentrant(drawing: Drawing, rows: list[Row], words: dict[str, str]) -> None:
    """A box an event, a line a block: a gradient that is ready a second time stands out."""
    kinds = {"forward": "plain", "recompute": "again", "ready": "good"}
    modes, sheet = _groups(rows, "checkpointing"), drawing.sheet
    pitch = sheet.span / max(map(len, modes.values()))
    for top, mode in zip((48, 132), ("reentrant", "nonreentrant"), strict=True):
        drawing.text(8, top - 8, words[f"reentrant:{mode}"])
        for line, block in enumerate(("1", "0")):
            drawing.text(sheet.left - 8, top + 13 + 26 * line, words["block"].format(n=block), "small", "end")
        for place, row in enumerate(modes[mode]):
            x, y = sheet.left + place * pitch, top + 26 * (row["block"] == "0")
            again = row["event"] == "ready" and row["time"] != "1"
            drawing.box(x, y, pitch - 4, 20, f"event {'wrong' if again else kinds[row['event']]}")
            drawing.text(x + pitch / 2 - 2, y + 14, row["time"], "on small", "middle")
    named = {kind: words[event] for event, kind in kinds.items()}
    drawing.legend(206, named | {"wrong": words["ready again"]})


def gathers(drawing: Drawing, rows: list[Row], words: dict[str, str]) -> None:
    """How much of a block is there, after each gather and release."""
    modes, sheet = _groups(rows, "run"), drawing.sheet
    for top, mode in zip((48, 142, 236), ("off", "stock", "vlmpatch"), strict=True):
        events = modes[mode]
        times = words["gathered"].format(times=gathered(events))
        drawing.text(8, top - 8, words[f"gathers:{mode}"])
        drawing.text(sheet.width - sheet.right, top - 8, times, "small", "end")
        for line, block in enumerate(("1", "0")):
            base = top + 30 + 36 * line
            drawing.text(sheet.left - 8, base - 8, words["block"].format(n=block), "small", "end")
            drawing.rule(base)
            _held(drawing, events, block, base)
    drawing.legend(330, {"plain": words["held"], "again": words["held since"]})


def gathered(events: list[Row]) -> float:
    """How often a block is gathered in a step, on the average."""
    total, last = 0.0, dict.fromkeys({row["block"] for row in events}, 0.0)
    for row in events:
        held = float(row["held"])
        total += max(0.0, held - last[row["block"]])
        last[row["block"]] = held
    return total / len(last)


def _held(drawing: Drawing, events: list[Row], block: str, base: float) -> None:
    """The share that is held, as bars from one event of the block to its next."""
    pitch = drawing.sheet.span / len(events)
    own = [(place, row) for place, row in enumerate(events) if row["block"] == block]
    ends = [place for place, _ in own[1:]] + [len(events)]
    kind = "plain"  # what is gathered in the backward follows the recompute, where there is one
    for (place, row), end in zip(own, ends, strict=True):
        kind = {"forward": "plain", "recompute": "again"}.get(row["event"], kind)
        height = 28 * float(row["held"])
        x, width = drawing.sheet.left + place * pitch, max(pitch, (end - place) * pitch)
        drawing.box(x, base - height, width, height, f"event {kind}")


def ranks(drawing: Drawing, rows: list[Row], words: dict[str, str]) -> None:
    """A box a gather; the last of a rank that never ends is where it waits."""
    runs, sheet = {run: _groups(those, "rank") for run, those in _groups(rows, "run").items()}, drawing.sheet
    most = max(len(those) for by_rank in runs.values() for those in by_rank.values()) / 2
    left, below, apart = (8, 8, 56) if sheet.stacked else (sheet.left + 20, 0, 26)
    pitch = (sheet.width - sheet.right - left) / most
    top = 48
    for run in ("stock", "vlmpatch"):
        drawing.text(8, top - 8, words[f"ranks:{run}"])
        for rank, events in sorted(runs[run].items()):
            if sheet.stacked:
                drawing.text(left, top + below, words[f"rank:{rank}"], "small")
            else:
                drawing.text(left - 8, top + 14, words[f"rank:{rank}"], "small", "end")
            _gathers_of_a_rank(drawing, events, words, left, top + 2 * below - 2 * sheet.stacked, pitch)
            top += apart
        top += 32
    named = {"good": words["language_model"], "plain": words["visual"], "wrong": words["waits"]}
    drawing.legend(top - 10, named)


def _gathers_of_a_rank(
    drawing: Drawing, events: list[Row], words: dict[str, str], left: float, y: float, pitch: float
) -> None:
    for place, (begins, ends) in enumerate(itertools.zip_longest(events[::2], events[1::2])):
        part = "visual" if "visual" in begins["module"] else "language_model"
        kind, x = "plain" if part == "visual" else "good", left + place * pitch
        drawing.box(x, y, pitch - 2, 20, f"event {kind if ends else 'wrong'}")
        if ends:
            drawing.box(x, y + 21, pitch - 2, 1.5, f"event {kind}")
        else:
            at = (left, y + 33) if drawing.sheet.stacked else (x + pitch + 4, y + 14)
            drawing.text(*at, f"{words[part]}{words['colon']}{words['waits']}", "small")


def stale(drawing: Drawing, rows: list[Row], words: dict[str, str]) -> None:
    """A bar a step and run; one that is not what it should be stands out."""
    right = {row["step"]: row["gradient"] for row in rows if row["run"] == "right"}
    most, sheet = max(float(row["gradient"]) for row in rows), drawing.sheet
    kinds = {"right": "right", "stock": "plain", "vlmpatch": "good"}
    left = 12 if sheet.stacked else sheet.left
    base, scale, pitch = 170, 110 / most, (sheet.width - left - sheet.right) / len(right)
    bar = min(50.0, (pitch - 8) / len(kinds))
    for place, (step, those) in enumerate(_groups(rows, "step").items()):
        x = left + place * pitch
        drawing.text(x + 1.5 * bar, base + 18, words["step"].format(step=step), "", "middle")
        drawing.text(x + 1.5 * bar, base + 33, words[those[0]["images"]], "small", "middle")
        for row in those:
            height = float(row["gradient"]) * scale
            wrong = abs(float(row["gradient"]) - float(right[step])) > 1e-4 * most
            at = x + bar * list(kinds).index(row["run"])
            drawing.box(
                at, base - height, bar - 6, height, f"event {'wrong' if wrong else kinds[row['run']]}"
            )
            shown = f"{float(row['gradient']):.2f}"
            drawing.text(at + bar / 2 - 3, base - height - 4, shown, "small", "middle")
    drawing.rule(base, sheet.left - left + 8)
    drawing.legend(226, {kind: words[f"stale:{run}"] for run, kind in kinds.items()})


FIGURES: dict[str, Callable[[Drawing, list[Row], dict[str, str]], None]] = {
    "reentrant": reentrant,
    "gathers": gathers,
    "ranks": ranks,
    "stale": stale,
}
