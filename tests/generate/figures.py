"""docs/figures/*.svg: drawn from ``data/traces/*.csv``, which ``python -m bench.traces`` measures.

A figure names its colours by class: on its own it brings a style for light and dark, on a page of the site
that of the page stands. Every event of a trace is in its figure as one element of the class ``event``.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.traces_ranks import COLUMNS
from tests.lab import pages, table

TRACES = pages.ROOT / "data" / "traces"
AGAIN = "python -m bench.traces"
WIDTH, LEFT, RIGHT = 760, 96, 24
STYLE = (
    "<style>text{font:12px sans-serif;fill:#24292f}.title{font-weight:700}.small{font-size:10px}"
    ".rule{stroke:#8b949e;stroke-width:1}.plain{fill:#9fb3c8}.again{fill:#e3b341}.good{fill:#3fa36c}"
    ".wrong{fill:#e5695f}.right{fill:#8b949e}.on{fill:#1b1f24}"
    "@media(prefers-color-scheme:dark){text{fill:#c9d1d9}.on{fill:#1b1f24}}</style>"
)
Row = dict[str, str]
Drawn = Iterator[str]

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
        "waits": "waits for the other rank for ever",
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
        "ranks": "ZeRO-3 的一次前向中两个 rank 依次开始的 gather",
        "ranks:stock": "不用 vlmpatch",
        "ranks:vlmpatch": "使用 vlmpatch",
        "rank:0": "rank 0，有图像",
        "rank:1": "rank 1，纯文本",
        "visual": "视觉塔",
        "language_model": "语言模型",
        "waits": "永远等待另一个 rank",
        "stale": "ZeRO-3 在三步中使用的视觉塔梯度（范数）",
        "step": "第 {step} 步",
        "yes": "有图像",
        "no": "所有 rank 都没有图像",
        "stale:right": "单进程，不用引擎",
        "stale:stock": "ZeRO-3",
        "stale:vlmpatch": "ZeRO-3 加 vlmpatch",
    },
}


def wanted() -> dict[Path, str]:
    """Every figure in every language."""
    return {
        pages.DOCS[language] / "figures" / f"{name}.svg": figure(name, language)
        for language in pages.LANGUAGES
        for name in FIGURES
    }


def read(name: str) -> list[Row]:
    """The lines of one trace."""
    return [row for _, row in table.read(TRACES / f"{name}.csv", COLUMNS[name], AGAIN)]


def figure(name: str, language: str) -> str:
    """One figure as SVG."""
    words, (height, draw) = WORDS[language], FIGURES[name]
    drawn = "\n".join(draw(read(name), words))
    title = html.escape(words[name])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{title}">\n{STYLE}\n{_text(8, 18, words[name], "title")}\n{drawn}\n</svg>\n'
    )


def _text(x: float, y: float, said: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{html.escape(said)}</text>'


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" class="{kind}"/>'


def _legend(y: float, named: dict[str, str]) -> Drawn:
    x = float(LEFT)
    for kind, said in named.items():
        yield _box(x, y - 10, 12, 12, kind)
        yield _text(x + 17, y, said, "small")
        x += 40 + 7.5 * max(len(said), 2 * sum(ord(sign) > 0x2E80 for sign in said))


def _groups(rows: list[Row], key: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found


def reentrant(rows: list[Row], words: dict[str, str]) -> Drawn:
    """A box an event, a line a block: a gradient that is ready a second time stands out."""
    kinds = {"forward": "plain", "recompute": "again", "ready": "good"}
    modes = _groups(rows, "checkpointing")
    pitch = (WIDTH - LEFT - RIGHT) / max(map(len, modes.values()))
    for top, mode in zip((48, 132), ("reentrant", "nonreentrant"), strict=True):
        yield _text(8, top - 8, words[f"reentrant:{mode}"])
        for line, block in enumerate(("1", "0")):
            yield _text(LEFT - 8, top + 13 + 26 * line, words["block"].format(n=block), "small", "end")
        for place, row in enumerate(modes[mode]):
            x, y = LEFT + place * pitch, top + 26 * (row["block"] == "0")
            again = row["event"] == "ready" and row["time"] != "1"
            yield _box(x, y, pitch - 4, 20, f"event {'wrong' if again else kinds[row['event']]}")
            yield _text(x + pitch / 2 - 2, y + 14, row["time"], "on small", "middle")
    named = {kind: words[event] for event, kind in kinds.items()}
    yield from _legend(206, named | {"wrong": words["ready again"]})


def gathers(rows: list[Row], words: dict[str, str]) -> Drawn:
    """How much of a block is there, after each gather and release."""
    modes = _groups(rows, "run")
    for top, mode in zip((48, 142, 236), ("off", "stock", "vlmpatch"), strict=True):
        events = modes[mode]
        pitch = (WIDTH - LEFT - RIGHT) / len(events)
        times = gathered(events)
        yield _text(8, top - 8, words[f"gathers:{mode}"])
        yield _text(WIDTH - RIGHT, top - 8, words["gathered"].format(times=times), "small", "end")
        for line, block in enumerate(("1", "0")):
            base = top + 30 + 36 * line
            yield _text(LEFT - 8, base - 8, words["block"].format(n=block), "small", "end")
            yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}" class="rule"/>'
            yield from _held(events, block, base, pitch)
    yield from _legend(330, {"plain": words["held"], "again": words["held since"]})


def gathered(events: list[Row]) -> float:
    """How often a block is gathered in a step, on the average."""
    total, last = 0.0, dict.fromkeys({row["block"] for row in events}, 0.0)
    for row in events:
        held = float(row["held"])
        total += max(0.0, held - last[row["block"]])
        last[row["block"]] = held
    return total / len(last)


def _held(events: list[Row], block: str, base: float, pitch: float) -> Drawn:
    """The share that is held, as bars from one event of the block to its next."""
    own = [(place, row) for place, row in enumerate(events) if row["block"] == block]
    ends = [place for place, _ in own[1:]] + [len(events)]
    kind = "plain"  # what is gathered in the backward follows the recompute, where there is one
    for (place, row), end in zip(own, ends, strict=True):
        kind = {"forward": "plain", "recompute": "again"}.get(row["event"], kind)
        height = 28 * float(row["held"])
        yield _box(
            LEFT + place * pitch, base - height, max(pitch, (end - place) * pitch), height, f"event {kind}"
        )


def ranks(rows: list[Row], words: dict[str, str]) -> Drawn:
    """A box a gather; the last of a rank that never ends is where it waits."""
    runs = {run: _groups(those, "rank") for run, those in _groups(rows, "run").items()}
    most = max(len(those) for by_rank in runs.values() for those in by_rank.values()) / 2
    pitch = (WIDTH - LEFT - RIGHT - 20) / most
    for top, run in zip((48, 132), ("stock", "vlmpatch"), strict=True):
        yield _text(8, top - 8, words[f"ranks:{run}"])
        for line, (rank, events) in enumerate(sorted(runs[run].items())):
            y = top + 26 * line
            yield _text(LEFT + 12, y + 14, words[f"rank:{rank}"], "small", "end")
            for place, (begins, ends) in enumerate(itertools.zip_longest(events[::2], events[1::2])):
                kind = "plain" if "visual" in begins["module"] else "good"
                x = LEFT + 20 + place * pitch
                yield _box(x, y, pitch - 2, 20, f"event {kind if ends else 'wrong'}")
                if ends:
                    yield _box(x, y + 21, pitch - 2, 1.5, f"event {kind}")
                else:
                    part = words["visual" if "visual" in begins["module"] else "language_model"]
                    yield _text(x + pitch + 4, y + 14, f"{part}: {words['waits']}", "small")
                place += 1
    yield from _legend(
        206, {"good": words["language_model"], "plain": words["visual"], "wrong": words["waits"]}
    )


def stale(rows: list[Row], words: dict[str, str]) -> Drawn:
    """A bar a step and run; one that is not what it should be stands out."""
    right = {row["step"]: row["gradient"] for row in rows if row["run"] == "right"}
    most = max(float(row["gradient"]) for row in rows)
    kinds = {"right": "right", "stock": "plain", "vlmpatch": "good"}
    base, scale, pitch = 170, 110 / most, (WIDTH - LEFT - RIGHT) / len(right)
    for place, (step, those) in enumerate(_groups(rows, "step").items()):
        x = LEFT + place * pitch
        yield _text(x + 75, base + 18, words["step"].format(step=step), "", "middle")
        yield _text(x + 75, base + 33, words[those[0]["images"]], "small", "middle")
        for row in those:
            bar = list(kinds).index(row["run"])
            height = float(row["gradient"]) * scale
            wrong = abs(float(row["gradient"]) - float(right[step])) > 1e-4 * most
            kind = "wrong" if wrong else kinds[row["run"]]
            yield _box(x + 50 * bar, base - height, 44, height, f"event {kind}")
            yield _text(
                x + 22 + 50 * bar, base - height - 4, f"{float(row['gradient']):.2f}", "small", "middle"
            )
    yield f'<line x1="{LEFT - 8}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}" class="rule"/>'
    yield from _legend(226, {kind: words[f"stale:{run}"] for run, kind in kinds.items()})


FIGURES: dict[str, tuple[int, Callable[[list[Row], dict[str, str]], Drawn]]] = {
    "reentrant": (218, reentrant),
    "gathers": (342, gathers),
    "ranks": (218, ranks),
    "stale": (238, stale),
}
