"""What holds bare holds with us, on every image-and-text family that can be made small here.

    python -m tests.lab.families tf457-ds0182 [--only aria,mllama] [--out FOLDER]

makes a tiny model of each family that transformers lists as image-text-to-text, from its own
configuration, and trains it for two steps by LoRA under ZeRO-3: bare with checkpointing off and on, and with
vlmpatch and checkpointing on. What is right is the same samples in one process without an engine. The result
goes into ``data/families.csv``, from which ``make generate`` writes ``docs/reference/families.md``.

    python -m tests.lab.families --make FOLDER [--only …]

is the part of it that runs inside the stack: the checkpoints, and ``made.json`` with what became of each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import traceback
from pathlib import Path

from tests import families
from tests.families._shared import small
from tests.lab import cells, envs, launch, model_classes, pages, table, zero3_loads
from tests.lab.cells import Result
from vlmpatch_lab.cell import Cell

STORE = pages.ROOT / "data" / "families.csv"
BEGIN = "<!-- written by tests.lab.families -->"
RUNS = ("bare off", "bare default", "patched default")  # and how checkpointing was
COLUMNS = ("stack", "family", *RUNS, "not made")
Found = dict[str, dict[str, dict[str, str]]]  # by stack and family: of each run, or why it was not made


def make_all(out: Path, only: list[str]) -> None:
    from vlmpatch_lab.models import add_vocabulary

    made = {}
    for model_type in small.listed():
        kind = model_type.replace("-", "_")
        if only and kind not in only:
            continue
        folder = out / kind
        try:
            if kind in families.names():
                families.make(kind, folder)
            else:
                small.make(model_type, folder)
            add_vocabulary(folder / "config.json")
            made[kind] = ""
        except Exception as error:
            made[kind] = f"{type(error).__name__}: {error}"
            (out / f"{kind}.txt").write_text(traceback.format_exc())
        print(f"{kind}: {made[kind][:150] or 'made'}", flush=True)
    (out / "made.json").write_text(json.dumps(made))


def verdict(result: Result) -> str:
    """``=`` where it is right, or what it is instead."""
    if not result.ok:
        return f"`{' '.join((result.error or '').split())[:60]}`"
    if result.missing:
        return f"{len(result.missing)} without a gradient"
    return "=" if cells.is_equal(result) else f"{result.difference:.0e} off"


def holds(about: dict[str, str]) -> bool:
    """What is right bare, with checkpointing or without, has to be right with vlmpatch and checkpointing."""
    bare = any(about.get(run) == "=" for run in RUNS[:2])
    return not bare or about.get(RUNS[2]) == "="


def perform(stack_name: str, only: list[str], out: Path) -> dict[str, dict[str, str]]:
    """Of each family, by engine and checkpointing, bare and patched; or why it could not be made."""
    stack = envs.read_stacks()[stack_name]
    envs.make(stack)
    made = made_in(stack, only, out / "models")
    models = {kind: out / "models" / kind for kind, why in made.items() if not why}
    off, on = (
        [Cell(kind, "zero3", "lora", compared=2, checkpointing=how) for kind in models]
        for how in ("off", "default")
    )
    right = out / "right"
    cells.measure(stack, [cell.reference for cell in off], right, models=models)
    bare = cells.run(stack, [*off, *on], out / "bare", reference=right, models=models)
    patched = cells.run(stack, on, out / "patched", patched=True, reference=right, models=models)
    found = {}
    for without, cell in zip(off, on, strict=True):
        results = (bare[without.id], bare[cell.id], patched[cell.id])
        found[cell.kind] = dict(zip(RUNS, map(verdict, results), strict=True))
        for run, result in zip(RUNS, results, strict=True):
            print(f"{run:16}{result}")
    return found | {kind: {"not made": why} for kind, why in made.items() if why}


def made_in(stack: envs.Stack, only: list[str], folder: Path) -> dict[str, str]:
    """Make them inside the stack: of each why it could not be made, or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = ["python", "-m", "tests.lab.families", "--make", folder]
    command += ["--only", ",".join(only)] if only else []
    finished = launch.run(stack, command, limit=900)
    if not (folder / "made.json").exists():
        raise RuntimeError(str(finished))
    found: dict[str, str] = json.loads((folder / "made.json").read_text())
    return found


def read(path: Path = STORE) -> Found:
    """What was run, by stack and family.

    Raises:
        table.Broken: the file is not whole.
    """
    found: Found = table.nested(path, COLUMNS, "python -m tests.lab.families STACK")
    for kinds in found.values():
        for family, line in kinds.items():
            not_made = line.pop("not made")
            kinds[family] = {"not made": not_made} if not_made else line
    return found


def save(found: Found, path: Path = STORE) -> None:
    table.write_nested(path, COLUMNS, found)


def shown(found: Found, words: dict[str, str]) -> str:
    lines = []
    for stack, kinds in sorted(found.items()):
        ran = {kind: about for kind, about in sorted(kinds.items()) if "not made" not in about}
        lost = sorted(kind for kind, about in kinds.items() if "not made" in about)
        lines += [f"### {stack}", "", "| |" + "".join(f" {words[run]} |" for run in RUNS)]
        lines += ["|---" * (len(RUNS) + 1) + "|"]
        lines += [
            f"| {kind} | " + " | ".join(about.get(run, "") for run in RUNS) + " |"
            for kind, about in ran.items()
        ]
        lines += ["", words["lost"].format(", ".join(f"`{kind}`" for kind in lost)), ""] if lost else [""]
    return "\n".join(lines).rstrip()


def page(language: str) -> Path:
    """The page with the table."""
    return pages.reference(language, "families")


def filled(language: str) -> str:
    """The page as the record has it."""
    text = pages.filled(page(language).read_text("utf-8"), BEGIN, shown(read(), WORDS[language]))
    text = pages.filled(text, model_classes.BEGIN, model_classes.shown(language))
    return pages.filled(text, zero3_loads.BEGIN, zero3_loads.shown(language))


WORDS = {
    "en": {
        "bare off": "bare, checkpointing off",
        "bare default": "bare, checkpointing on",
        "patched default": "vlmpatch, checkpointing on",
        "lost": "No small model of these could be made from their configurations: {}.",
    },
    "zh": {
        "bare off": "无补丁，不开检查点",
        "bare default": "无补丁，开检查点",
        "patched default": "vlmpatch，开检查点",
        "lost": "以下家族未能由其配置做出小模型：{}。",
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.families")
    parser.add_argument("stack", nargs="?", choices=envs.read_stacks())
    parser.add_argument("--only", default="", help="families, by commas")
    parser.add_argument("--make", type=Path, metavar="FOLDER", help="inside a stack: make them")
    parser.add_argument("--out", type=Path, help="keep checkpoints, logs and gradients here")
    asked = parser.parse_args()
    only = [kind for kind in asked.only.split(",") if kind]
    if asked.make:
        make_all(asked.make, only)
        return
    if not asked.stack:
        parser.error("which stack?")
    out = asked.out or Path(tempfile.mkdtemp(prefix="families-"))
    ran = perform(asked.stack, only, out)
    found = read()
    found[asked.stack] = found.get(asked.stack, {}) | ran
    save(found)


if __name__ == "__main__":
    main()
