"""Every class of transformers that generates, loaded under ZeRO-3: is it what was saved?

    python -m tests.lab.zero3_loads tf524-ds0198 [--only Qwen3_5,Gemma4] [--sides bare,patched]

loads a small checkpoint of each class inside the stack, bare and with vlmpatch, by ``tests.lab.loads``, and
compares every weight and buffer with what is loaded without ZeRO-3. The result goes into
``data/zero3_loads.csv``, from which ``make generate`` writes what differs into
``docs/reference/families.md``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.lab import envs, launch, pages, table
from tests.lab.modes import lines_of

STORE = pages.ROOT / "data" / "zero3_loads.csv"
BEGIN = "<!-- written by tests.lab.zero3_loads -->"
SIDES = ("bare", "patched")
COLUMNS = ("stack", "class", "family", *SIDES, "not made")
RIGHT = "="
Line = Mapping[str, str]
Found = dict[str, dict[str, dict[str, str]]]  # by stack and class
# Why what is wrong with vlmpatch too is left, by the folder in transformers.
LEFT = {
    **dict.fromkeys(("apertus1p5", "musicgen", "musicgen_melody"), "normed"),
    **dict.fromkeys(("clvp", "moonshine_streaming", "vibevoice"), "scalar"),
}
WORDS = {
    "en": {
        "count": "{stack}: {made} of {seen} classes could be made small; bare {bare} are not what was saved, "
        "with vlmpatch {patched}.",
        "head": "| class | bare | with vlmpatch | |",
        "normed": "left: torch's `weight_norm` takes apart a weight that is partitioned already",
        "scalar": "left: DeepSpeed 0.19 sends a weight as bytes, as which a single number has no shape",
        "unrun": "not run",
    },
    "zh": {
        "count": "{stack}：{seen} 个类中有 {made} 个能做成小模型；无补丁时 {bare} 个与保存的不同，"
        "使用 vlmpatch 时 {patched} 个。",
        "head": "| 类 | 无补丁 | 使用 vlmpatch | |",
        "normed": "保留：torch 的 `weight_norm` 拆分的是已被切分的权重",
        "scalar": "保留：DeepSpeed 0.19 按字节发送权重，而单个数值无法这样表示",
        "unrun": "未运行",
    },
}


def perform(stack_name: str, only: str, out: Path, *, patched: bool = False) -> Iterable[Line]:
    """Run the classes inside the stack that are not in ``out`` yet; a line of each."""
    stack = envs.read_stacks()[stack_name]
    envs.make(stack)
    out.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = ["python", "-W", "ignore", "-m", "tests.lab.loads", "--out", out / "lines"]
    command += ["--only", only, *(["--patched"] if patched else [])]
    finished = launch.run(stack, command, limit=7200, waiting=True, gloo=True)
    if finished.rc != 0:
        raise RuntimeError(str(finished))
    return lines_of(out / "lines")


def read(path: Path = STORE) -> Found:
    """What was run, by stack and class."""
    return table.nested(path, COLUMNS, "python -m tests.lab.zero3_loads STACK")


def save(found: Found, path: Path = STORE) -> None:
    table.write_nested(path, COLUMNS, found)


def merge(found: Found, stack: str, side: str, ran: Iterable[Line]) -> None:
    """Add what one side did to what is on file."""
    for line in ran:
        about = found.setdefault(stack, {}).setdefault(line["class"], dict.fromkeys(COLUMNS[2:], ""))
        about |= {"family": line["module"], side: line.get("loads", "")}
        about["not made"] = line.get("not made", "")


def is_wrong(about: Line, side: str) -> bool:
    return about[side] not in ("", RIGHT)


def harmed(about: Line) -> bool:
    """Whether vlmpatch made something wrong that was right."""
    return about["bare"] == RIGHT and is_wrong(about, "patched")


def shown(language: str) -> str:
    """The part of the page that is made of the record."""
    words, parts = WORDS[language], []
    for stack, kinds in sorted(read().items()):
        wrong = {side: [name for name, about in kinds.items() if is_wrong(about, side)] for side in SIDES}
        counted = words["count"].format(
            stack=stack,
            seen=len(kinds),
            made=sum(not about["not made"] for about in kinds.values()),
            **{side: len(names) for side, names in wrong.items()},
        )
        rows = [_row(name, kinds[name], words) for name in sorted({*wrong["bare"], *wrong["patched"]})]
        parts += [counted, "", words["head"], "|---" * 4 + "|", *rows, ""]
    return "\n".join(parts).rstrip()


def _row(name: str, about: Line, words: Mapping[str, str]) -> str:
    left = words[LEFT[about["family"]]] if is_wrong(about, "patched") and about["family"] in LEFT else ""
    return f"| {name} | {about['bare']} | {about['patched'] or words['unrun']} | {left} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.zero3_loads")
    parser.add_argument("stack", choices=envs.read_stacks())
    parser.add_argument("--only", default="", help="beginnings of class names, by commas")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--out", type=Path, help="keep what was run here, and do not run it again")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zero3-loads-") as temporary:
        for side in asked.sides.split(","):
            out = (asked.out or Path(temporary)) / side
            ran = perform(asked.stack, asked.only, out, patched=side == "patched")
            found = read()  # only now: another run may have been put on record in the meantime
            merge(found, asked.stack, side, ran)
            save(found)


if __name__ == "__main__":
    main()
