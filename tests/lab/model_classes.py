"""Every model class of transformers that supports checkpointing: does training compute what it evaluates?

    python -m tests.families tf523-ds0198 [--only Llama,Gemma3n] [--lines FILE]

makes a small model of each class inside the stack and compares loss and gradients of training without
checkpointing, and with both variants of it, with evaluation mode: ``tests.lab.modes``. The result goes into
``data/model-classes.csv``, from which ``make generate`` writes a table of what differs into
``docs/reference/families.md``. It takes half a second a class, of which the newest transformers has 1600;
``--lines`` takes what an earlier run has written.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.lab import envs, launch, pages, table

STORE = pages.ROOT / "data" / "model-classes.csv"
BEGIN = "<!-- written by tests.families -->"
MODES = ("off", "nonreentrant", "reentrant")
COLUMNS = ("stack", "class", "family", *MODES, "not made")
Found = dict[str, dict[str, dict[str, str]]]  # by stack and class
BY_ITSELF = "inputs"
# What is known of what differs, by the folder in transformers: a failure, or why it is none.
KNOWN = {
    **dict.fromkeys(("gemma3n", "gemma4", "gemma4_unified"), "F52"),
    **dict.fromkeys(("blt", "conditional_detr", "detr", "dinov2", "dinov2_with_registers"), BY_ITSELF),
    **dict.fromkeys(("dinov3_vit", "groupvit"), "chance"),
    **dict.fromkeys(("git", "mlcd"), "open"),
}
WORDS = {
    "en": {
        "F52": "[F52](failures.md#f52)",
        "inputs": "a part by itself, fed with tensors that need no gradient, as no model feeds it",
        "chance": "trains with augmentation or sampling of its own",
        "open": "a failure without a number: not mended",
        "": "**not looked into**",
        "count": "{stack}: {made} of {seen} classes tried could be made small; {differing} differ.",
        "head": "| class | no checkpointing | non-reentrant | reentrant | |",
    },
    "zh": {
        "F52": "[F52](failures.md#f52)",
        "inputs": "单独的部件,输入不需要梯度;实际模型不会这样调用",
        "chance": "训练时自带随机增强或采样",
        "open": "尚无编号的问题:未修复",
        "": "**尚未调查**",
        "count": "{stack}:尝试的 {seen} 个类中有 {made} 个能做成小模型,其中 {differing} 个不一致。",
        "head": "| 类 | 不开检查点 | non-reentrant | reentrant | |",
    },
}


def perform(stack_name: str, only: str, out: Path) -> Iterable[Mapping[str, str]]:
    """Run the classes inside the stack; a line of each."""
    stack = envs.read_stacks()[stack_name]
    envs.make(stack)
    command: list[str | Path] = ["python", "-W", "ignore", "-m", "tests.lab.modes", "--out", out / "lines"]
    finished = launch.run(stack, [*command, "--only", only], limit=7200)
    if finished.rc != 0:
        raise RuntimeError(str(finished))
    return lines(out / "lines")


def lines(path: Path) -> list[Mapping[str, str]]:
    """What ``tests.lab.modes`` has written so far."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def read(path: Path = STORE) -> Found:
    """What was run, by stack and class."""
    found: Found = {}
    for _, line in table.read(path, COLUMNS, "python -m tests.families STACK"):
        found.setdefault(line.pop("stack"), {})[line.pop("class")] = line
    return found


def save(found: Found, path: Path = STORE) -> None:
    rows = [
        (stack, name, *(about.get(column, "") for column in COLUMNS[2:]))
        for stack, kinds in sorted(found.items())
        for name, about in sorted(kinds.items())
    ]
    table.write(path, COLUMNS, rows)


def differs(about: Mapping[str, str]) -> bool:
    """Whether a class that was run is not one function in all modes."""
    return not about["not made"] and any(about[mode] != "=" for mode in MODES)


def shown(language: str) -> str:
    """The part of the page that is made of the record."""
    words, parts = WORDS[language], []
    for stack, kinds in sorted(read().items()):
        made = [about for about in kinds.values() if not about["not made"]]
        differing = {name: about for name, about in sorted(kinds.items()) if differs(about)}
        text = words["count"].format(stack=stack, made=len(made), seen=len(kinds), differing=len(differing))
        rows = [_row(name, about, words) for name, about in differing.items()]
        parts += [text, "", words["head"], "|---" * 5 + "|", *rows, ""]
    return "\n".join(parts).rstrip()


def _row(name: str, about: Mapping[str, str], words: Mapping[str, str]) -> str:
    known = words[KNOWN.get(about["family"], "")]
    return f"| {name} | {' | '.join(about[mode] for mode in MODES)} | {known} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.families")
    parser.add_argument("stack", choices=envs.read_stacks())
    parser.add_argument("--only", default="", help="beginnings of class names, by commas")
    parser.add_argument("--lines", type=Path, help="take these, run nothing")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="modes-") as out:
        ran = lines(asked.lines) if asked.lines else perform(asked.stack, asked.only, Path(out))
    found = read()
    for line in ran:
        about = {"family": line["module"], **{name: line.get(name, "") for name in (*MODES, "not made")}}
        found.setdefault(asked.stack, {})[line["class"]] = about
    save(found)
