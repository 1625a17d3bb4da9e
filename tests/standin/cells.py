"""Runs of the script as data, and the sweep over engines, tunings and kinds of batch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

TF445, TF457, TF523, TF524 = "tf445-ds0154", "tf457-ds0182", "tf523-ds0198", "tf524-ds0198"
STACKS = (TF445, TF457, TF523)
LAUNCHED = (*STACKS, TF524)  # what the script's own command line is run on
TF457_NEW_DEEPSPEED = "tf457-ds0198"
FULL = os.environ.get("VLMPATCH_FULL") == "1"
ENGINES = ("zero2", "zero3", "ddp")
TUNINGS = ("lora_vision", "lora", "full", "llm_frozen")
# What the unchanged script ends in without vlmpatch, on the torch of today.
BARE = {
    TF445: "NameError: name 'List' is not defined",
    TF457: "NameError: name 'Dict' is not defined",
    TF523: "NameError: name 'Dict' is not defined",
    TF524: "NameError: name 'Dict' is not defined",
}


@dataclass(frozen=True)
class Cell:
    """One run of the script."""

    engine: str = "zero2"
    tuning: str = "lora_vision"
    data: str = "many"  # few: one slice an image; many: more slices than vision_batch_size
    batch: int = 1
    kwargs: str = "own"  # what the script assigns to gradient_checkpointing_kwargs: own | none | reentrant
    input_grads: bool = False  # the script calls enable_input_require_grads(), as LLaMA-Factory does for LoRA
    checkpointing: bool = True
    accumulate: int = 1
    steps: int = 4
    without: tuple[str, ...] = ()  # patches taken back before the script starts
    drop: tuple[str, ...] = ()  # taken from the command line

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Cell:
        """From JSON or TOML, which have lists for tuples."""
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
        return cls(**values)

    @property
    def id(self) -> str:
        parts = [self.engine, self.tuning, self.data, f"b{self.batch}"]
        parts += [self.kwargs if self.checkpointing else "off"]
        parts += ["input-grads"] if self.input_grads else []
        parts += [f"ga{self.accumulate}"] if self.accumulate > 1 else []
        parts += [f"no-{name}" for name in self.without]
        parts += [f"drop-{name}" for name in self.drop]
        return "-".join(parts)

    @property
    def reference(self) -> Cell:
        """The same training with checkpointing off."""
        return dataclasses.replace(self, checkpointing=False, kwargs="own", input_grads=False, without=())

    @property
    def patched(self) -> Cell:
        """The same training with every patch."""
        return dataclasses.replace(self, without=())


@dataclass(frozen=True)
class Trial:
    """A cell on a stack, and the cells it is compared with."""

    stack: str
    cell: Cell
    beside: tuple[Cell, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.stack}:{self.cell.id}"


def matrix(stack: str) -> list[Cell]:
    """Every engine, tuning and kind of batch; the three ways to say use_reentrant on the hardest batch.

    The short form has every tuning once and every other value with LoRA and a trainable tower, and the stacks
    share it: each pair of an engine and such a kind of run is there once. The three ways stay together, since
    one run with checkpointing off is the measure of all.
    """
    batches = (("many", 1, "own"), ("many", 1, "none"), ("many", 1, "reentrant"))
    others = (("few", 1, "own"), ("many", 2, "own"))
    kinds = [(tuning, *batch) for tuning in TUNINGS for batch in (*batches, *others)]
    if FULL:
        return [Cell(engine, *kind) for engine in ENGINES for kind in kinds]
    kinds = [kind for kind in kinds if kind[0] == TUNINGS[0] or kind[1:] == batches[0]]
    turn = STACKS.index(stack)
    return [
        Cell(engine, *kind)
        for row, engine in enumerate(ENGINES)
        for column, kind in enumerate(kinds)
        if (row + max(0, column - len(batches) + 1)) % len(STACKS) == turn
    ]


# Where use_reentrant=True, said by the script, can only end in an error: a parameter of the tower is used in
# two checkpointed segments. With the tower frozen none is, but the Trainer has DDP look for unused parameters
# of a PeftModel, which is enough.
_OVERRULED = {
    "zero2": {"lora_vision", "full", "llm_frozen"},
    "zero3": set[str](),
    "ddp": {"lora_vision", "full", "llm_frozen", "lora"},
}


def overruled(cell: Cell) -> bool:
    """Whether a cell of the matrix says what can only end in an error."""
    return cell.kwargs == "reentrant" and cell.tuning in _OVERRULED[cell.engine]


def with_references(cells: Iterable[Cell]) -> list[Cell]:
    """Each once, after the run with checkpointing off that it is measured against."""
    return list(dict.fromkeys(found for cell in cells for found in (cell.reference, cell)))
