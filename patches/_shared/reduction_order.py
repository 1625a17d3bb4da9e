"""What the patches of ZeRO's flat gradients share: one order of parameters for all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

# Parts of a vision-language model that the loss reaches through the language model, whatever the order
# in which the model registers them. A wrong guess costs memory in the first backward, nothing else.
BEHIND = re.compile(
    r"vis|vit|vpm|image|img|pixel|resampler|projector|merger|connector|aligner|mlp1|audio|apm"
)


class ReductionOrder:
    """Parameters in the order in which every rank reduces them, and which of them have arrived.

    A gradient that arrives early waits until all before it have been reduced; ``ready`` gives those
    whose turn has come, ``rest`` at the end of the backward those that still wait or never came.

    Args:
        order: every parameter with its group, the same on all ranks.
    """

    def __init__(self, order: Sequence[tuple[Any, int]]) -> None:
        self.members = list(order)
        self.places = {id(param): place for place, (param, _) in enumerate(self.members)}
        self.waiting: dict[int, Any] = {}  # place -> what ``arrive`` was told
        self.due = 0
        self.heard: list[int] | None = []  # places by arrival, until the order has been agreed on
        self.attempts = 0
        self.draining = False

    def passed(self, param: Any) -> bool:
        """Whether this parameter has been reduced in this backward."""
        return self.places[id(param)] < self.due

    def takes_turn(self, param: Any) -> bool:
        """Whether it is this parameter's turn, with nothing to remember of it: what most steps consist of."""
        if self.heard is not None or self.waiting or self.due == len(self.members):
            return False
        if self.members[self.due][0] is not param:
            return False
        self.due += 1
        return True

    def arrive(self, param: Any, note: Any = None) -> None:
        """A gradient is there; ``note`` comes back with it."""
        place = self.places[id(param)]
        if self.heard is not None and place not in self.waiting:
            self.heard.append(place)
        self.waiting[place] = note

    def ready(self) -> Iterator[tuple[Any, int, Any]]:
        """Take those whose turn it is."""
        while self.due in self.waiting:
            note = self.waiting.pop(self.due)
            param, group = self.members[self.due]
            self.due += 1
            yield param, group, note

    def rest(self) -> Iterator[tuple[Any, int]]:
        """Take all that are left, in order, whether they arrived or not."""
        self.waiting.clear()
        while self.due < len(self.members):
            self.due += 1
            yield self.members[self.due - 1]

    def begin(self) -> None:
        """Forget who arrived: a backward is over."""
        self.waiting.clear()
        self.due = 0
        if self.heard is not None:
            self.heard = []

    def reorder(self, first: Iterable[int]) -> None:
        """Put the places ``first`` before all others, which keep their order."""
        ahead = list(dict.fromkeys(first))
        known = set(ahead)
        places = [*ahead, *(place for place in range(len(self.members)) if place not in known)]
        self.members = [self.members[place] for place in places]
        self.places = {id(param): place for place, (param, _) in enumerate(self.members)}


orders: WeakKeyDictionary[Any, ReductionOrder] = WeakKeyDictionary()  # of each optimizer


def backward_order(groups: Sequence[Sequence[Any]], names: dict[Any, str]) -> list[tuple[Any, int]]:
    """A guess at the order of the first backward: registered last, first; the vision tower at the end.

    Args:
        groups: the optimizer's parameters.
        names: of the model's parameters, in the order in which it registers them.
    """
    registered = {id(param): number for number, param in enumerate(names)}
    known = {id(param): name for param, name in names.items()}
    members = [(param, group) for group, params in enumerate(groups) for param in params]

    def place(member: tuple[Any, int]) -> tuple[bool, int]:
        param = id(member[0])
        return BEHIND.search(known.get(param, "").lower()) is not None, -registered.get(param, 0)

    return sorted(members, key=place)
