"""What GPUs showed, in ``data/gpu.csv``, and the tables of it in docs/evidence.md."""

from __future__ import annotations

from typing import Any

from tests.lab import pages, table
from vlmpatch.tools.view.language import Words

STORE = pages.ROOT / "data" / "gpu.csv"
COLUMNS = ("id", "check", "device", "torch", "transformers", "deepspeed", "cell", "bare", "patched", "plain")
OVERLAP, RIGHT = "<!-- written by tests.gpu overlap -->", "<!-- written by tests.gpu right -->"
TRAINER = "<!-- written by tests.gpu trainer -->"
SETTINGS = ("large 1", "large 3", "buckets 1", "buckets 3")
HEADS: dict[str, dict[str, tuple[str, ...]]] = {
    OVERLAP: {
        "en": ("DeepSpeed", "large, 1 rank", "large, 3 ranks", "buckets, 1 rank", "buckets, 3 ranks"),
        "zh": (
            "DeepSpeed",
            "大梯度，1 个 rank",
            "大梯度，3 个 rank",
            "梯度桶，1 个 rank",
            "梯度桶，3 个 rank",
        ),
    },
    RIGHT: {
        "en": ("training", "transformers", "ranks", "without vlmpatch", "with", "bf16 by itself"),
        "zh": ("训练", "transformers", "rank 数", "不用 vlmpatch", "使用后", "bf16 本身"),
    },
    TRAINER: {
        "en": ("training", "transformers", "ranks", "without vlmpatch", "with"),
        "zh": ("训练", "transformers", "rank 数", "不用 vlmpatch", "使用后"),
    },
}
ENGINES = {"ddp": "DDP", "zero2": "ZeRO-2", "zero3": "ZeRO-3", "fsdp1": "FSDP1", "fsdp2": "FSDP2"}
WORDS = {
    "en": {
        "dies": "dies",
        "missing": "{} without a gradient",
        "lora": "LoRA",
        "qlora": "QLoRA",
        "full": "full",
        "mixed": "mixed",
    },
    "zh": {
        "dies": "报错退出",
        "missing": "{} 个没有梯度",
        "lora": "LoRA",
        "qlora": "QLoRA",
        "full": "全参",
        "mixed": "混合 batch",
    },
}


def line(of: dict[str, str], found: dict[str, Any]) -> dict[str, str]:
    """A line of the record.

    Args:
        of: the machine and the versions.
        found: what a check of ``tests.gpu`` yields.
    """
    ways = {way: short(found[way]) if way in found else "" for way in ("bare", "patched", "plain")}
    named = {"check": found["check"], "cell": found["cell"], **of}
    key = "/".join(named[name] for name in ("check", "deepspeed", "cell"))
    return {"id": key, **{name: named[name] for name in COLUMNS if name in named}, **ways}


def short(said: dict[str, Any]) -> str:
    """What a process printed, in a word or two."""
    if "error" in said:
        return "dies"
    if "wrong" in said:
        return f"{said['wrong']}/{said['reductions']}"
    if "peak_mib" in said and "off" not in said:
        counts = [f"{said[name]} {name}" for name in ("kernels", "waits", "calls") if name in said]
        return ", ".join([f"{said['peak_mib']} MiB", f"{said['seconds'] * 1000:.0f} ms", *counts])
    off = said["off"]
    return f"missing {off.split()[0]}" if isinstance(off, str) else f"{off:.2g}"


def read() -> list[dict[str, str]]:
    """What was measured.

    Raises:
        table.Broken: the file is not whole.
    """
    return [each for _, each in table.read(STORE, COLUMNS, "python -m tests.gpu")]


def write(measured: list[dict[str, str]]) -> None:
    table.write_over(STORE, COLUMNS, read(), measured, "id")


def filled(language: str, text: str) -> str:
    """The page ``text`` with its tables as the record has them."""
    lines = read()
    tables = {
        OVERLAP: overlap(lines),
        RIGHT: trainings(language, lines, "right"),
        TRAINER: [row[:-1] for row in trainings(language, lines, "trainer")],
    }
    for begin, rows in tables.items():
        text = pages.filled(text, begin, pages.table(HEADS[begin][language], rows))
    return text


def overlap(lines: list[dict[str, str]]) -> list[tuple[str, ...]]:
    """A row a release of DeepSpeed."""
    found = {(each["deepspeed"], each["cell"]): each for each in lines if each["check"] == "overlap"}
    releases = sorted({release for release, _ in found}, key=lambda each: [int(n) for n in each.split(".")])
    return [(release, *(change(found[release, each]) for each in SETTINGS)) for release in releases]


def change(each: dict[str, str]) -> str:
    """How many were wrong; nothing where it does not run without vlmpatch either."""
    wrong = [each[way].partition("/")[0] for way in ("bare", "patched")]
    return "" if each["bare"] == "dies" else " → ".join(wrong)


def trainings(language: str, lines: list[dict[str, str]], check: str) -> list[tuple[str, ...]]:
    """A row a training."""
    said = WORDS[language]

    def word(short: str) -> str:
        first, _, number = short.partition(" ")
        return said[first].format(number) if first in said else short

    rows: list[tuple[str, ...]] = []
    for each in (each for each in lines if each["check"] == check):
        *named, kind, ranks, _ = each["cell"].split()
        named += [kind] if kind in said else []
        training = (
            Words(language).mark(", ").join(said.get(name) or ENGINES.get(name, name) for name in named)
        )
        where = (training, each["transformers"], ranks.partition("=")[2])
        by_itself = each["plain"] if "bfloat16" in named else ""
        rows.append((*where, word(each["bare"]), word(each["patched"]), by_itself))
    return rows
