"""A script drawn at random: what it does with an engine, deed by deed, as data. ``walker.py`` does it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

# What a script may do, and how often it is drawn.
DEEDS = {
    "batch": 10,
    "step": 9,
    "past": 2,  # a batch whose backward is the loss's own, not the engine's
    "text": 2,  # a batch that passes one layer by
    "sum": 1,  # two forwards, one backward of both
    "both": 1,  # two forwards, then a backward of each
    "read": 1,  # a batch, of which every gradient is looked at
    "zero": 1,  # the optimizer's zero_grad
    "dropped": 1,  # a batch, and zero_grad instead of its step
    "nan": 1,  # the same, with a loss that is no number
    "failed": 1,  # the same, with an error in its backward
    "look": 1,  # a forward without gradients
    "evaluate": 1,
    "freeze": 1,  # the layer that a text passes by
    "thaw": 1,
}
COUNTED = ("batch", "past", "text", "sum", "both", "read")
DROPPING = ("zero", "dropped", "nan", "failed")
OPTIMIZERS = ("SGD", "AdamW")
LENGTHS = range(3, 13)
ACCUMULATION = (1, 1, 2, 3)


@dataclass(frozen=True)
class Walk:
    """One script; ``seed`` makes its network and samples too."""

    seed: int
    accumulation: int
    optimizer: str
    deeds: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.seed}:{self.accumulation}:{self.optimizer}:{','.join(self.deeds)}"

    @classmethod
    def of(cls, text: str) -> Walk:
        """Reads what ``str`` writes.

        Raises:
            ValueError: it is not that.
        """
        seed, accumulation, optimizer, deeds = text.split(":")
        walk = cls(int(seed), int(accumulation), optimizer, tuple(deeds.split(",")))
        if optimizer not in OPTIMIZERS or not set(walk.deeds) <= set(DEEDS):
            raise ValueError(f"no walk: {text}")
        return walk


def draw(seed: int, among: Sequence[str] = tuple(DEEDS)) -> Walk:
    """The walk of ``seed``: every ``seed`` has one, and always the same."""
    drawn = random.Random(seed)
    count = drawn.choice(LENGTHS)
    accumulation, optimizer = drawn.choice(ACCUMULATION), drawn.choice(OPTIMIZERS)
    deeds = drawn.choices(among, [DEEDS[deed] for deed in among], k=count)
    return Walk(seed, accumulation, optimizer, tuple(as_loops_do(deeds, accumulation)))


def as_loops_do(deeds: Sequence[str], accumulation: int) -> list[str]:
    """A step follows every batch of a longer window, and in a window of one there is none without a batch."""
    done: list[str] = []
    pending = False
    for deed in deeds:
        if deed == "step" and (accumulation > 1 or not pending):
            deed = "batch"
        done.append(deed)
        pending = deed in COUNTED or (pending and deed != "step" and deed not in DROPPING)
        if accumulation > 1 and deed in COUNTED:
            done.append("step")
    return done
