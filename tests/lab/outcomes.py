"""What a cell is known to do, as data that a test checks; never "this or that"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.lab.cells import Result
from vlmpatch_lab.cell import Cell

TOLERANCE = 1e-5  # relative difference to checkpointing off, float32
PLAINLY = 0.1  # a gradient said to be wrong is wrong by at least this much


@dataclass(frozen=True)
class Outcome:
    """How a cell ends: with an error, or with gradients that are right or wrong in a known way."""

    name: str
    error: str | None = None  # regex: it raises this
    untrained: str | None = None  # regex: exactly the tensors named so get no gradient
    apart: bool = False  # the ranks' gradients differ from each other
    wrong: bool = False  # the gradients differ from the right ones

    def check(self, result: Result, measure: Result) -> None:
        """Raise ``AssertionError`` unless ``result`` is this outcome; ``measure``: the right run."""
        assert result.ok == (self.error is None), f"not {self.name}: {result}\n{result.log[-4000:]}"
        if self.error is not None:
            assert re.search(self.error, result.error or ""), f"not {self.name}: {result}"
            return
        assert result.difference is not None, f"never compared: {result}"
        assert result.between_ranks is not None, f"never compared: {result}"
        self._check_missing(result)
        if self.wrong:
            assert result.difference > PLAINLY, f"not {self.name}: {result}"
        else:
            assert result.difference <= TOLERANCE, f"not {self.name}: {result}"
            _same_losses(result, measure)
        if self.apart:
            assert result.between_ranks > PLAINLY, f"not {self.name}: {result}"
        else:
            assert result.between_ranks == 0.0, f"not {self.name}: {result}"

    def _check_missing(self, result: Result) -> None:
        if self.untrained is None:
            assert not result.missing, f"not {self.name}: {result.missing}"
            return
        assert result.missing, f"not {self.name}: every tensor has a gradient"
        others = [name for name in result.missing if not re.search(self.untrained, name)]
        assert not others, f"not only those of {self.name}: {others}"


def _same_losses(result: Result, measure: Result) -> None:
    """Every step of every rank ends in the loss of the right run."""
    for got, right in zip(result.losses, measure.losses, strict=True):
        pairs = list(zip(got, right, strict=True))
        assert all(abs(a - b) <= TOLERANCE * abs(b) for a, b in pairs), f"{result.id}: losses {pairs}"


RIGHT = Outcome("right")
READY_TWICE = Outcome("F3: marked ready twice", error="Expected to mark a variable ready only once")
REDUCED_TWICE = Outcome("F1: reduced twice", error=r"The parameter \S+ has already been reduced")
NEVER_READY = Outcome(
    "F5 under DDP, second step", error="Expected to have finished reduction in the prior iteration"
)
NO_GRAPH = Outcome("nothing requires grad", error="element 0 of tensors does not require grad")
NO_FUNCTION = Outcome("a flag without a function", error="has no attribute '_gradient_checkpointing_func'")
UNTRAINED = Outcome("F5: the ViT's LoRA gets no gradient", untrained="visual", wrong=True)
UNTRAINED_APART = Outcome("F5 under DDP: and nothing is averaged", untrained="visual", wrong=True, apart=True)
APART = Outcome("F6: ranks drift apart", wrong=True, apart=True)


@dataclass(frozen=True)
class Case:
    """One cell on one stack, and what it does without and with vlmpatch."""

    stack: str
    cell: Cell
    bare: Outcome
    patched: Outcome = RIGHT
    warns: str | None = None  # id of the patch that warns when vlmpatch is there

    @property
    def id(self) -> str:
        return f"{self.stack}:{self.cell.id}"
