"""Several values for one place, one on top of the other, each taken away in any order.

Every value knows what lies below it. The topmost is what the place holds; when it goes, what lies below
comes back. When one in the middle goes, the one above inherits what lay below it, and the place is not
touched. Whatever the order, the last to go leaves the object that was there first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vlmpatch.places import Place


class Value:
    """A value of ours at a place.

    Args:
        place: where.
        value: what.
        tag: whose; one that comes again takes the position it had. None: it never comes again.
        rebase: called with what lies below from now on, when that changes under us.
    """

    def __init__(
        self, place: Place, value: Any, tag: str | None, rebase: Callable[[Any], None] | None = None
    ) -> None:
        self.place = place
        self.value = value
        self.tag = tag
        self.rebase = rebase
        self.below = place.held()
        self.on = False

    def lie_on(self, below: Any) -> None:
        """What lies below is now ``below``."""
        self.below = below
        if self.rebase is not None:
            self.rebase(below)


class Stacks:
    """The values of all places; whoever calls holds the journal's lock."""

    def __init__(self) -> None:
        self._values: dict[Any, list[Value]] = {}

    def put(self, value: Value) -> None:
        """Put ``value`` at its place: on top, or in the position it had."""
        self._enter(value)
        above = self._above(value)
        if above is None:
            value.below = value.place.held()
            value.place.put(value.value)
        else:
            value.below = above.below
            above.lie_on(value.value)
        value.on = True

    def adopt(self, value: Value, below: Any) -> None:
        """``value`` lies at its place already, over ``below``: look after it."""
        self._enter(value)
        value.below, value.on = below, True

    def take(self, value: Value) -> bool:
        """Take ``value`` away; False when somebody else has put something on top of it since."""
        if not value.on:
            return True
        above, value.on = self._above(value), False
        stack = self._of(value.place)
        if value.tag is None and value in stack:
            stack.remove(value)
        if not any(other.on for other in stack):
            self._values.pop(value.place.key, None)
        if not value.place.alive:
            return True
        if above is not None:
            ours = above.below is value.value
            if ours:
                above.lie_on(value.below)
            return ours
        topmost = value.place.holds(value.value)
        if topmost:
            value.place.put(value.below)
        return topmost

    def change(self, value: Value, new: Any) -> None:
        """From now on ``value``, wherever it lies, is ``new``."""
        old, value.value = value.value, new
        above = self._above(value)
        if above is None:
            value.place.put(new)
        elif above.below is old:
            above.lie_on(new)

    def covered(self, value: Value) -> bool:
        """Whether another value of ours lies on top of ``value``, or of the position it had."""
        return self._above(value) is not None

    def prune(self) -> None:
        """Forget places whose owner is gone."""
        for key in [key for key, stack in self._values.items() if not (stack and stack[0].place.alive)]:
            del self._values[key]

    def _enter(self, value: Value) -> None:
        stack = self._of(value.place)
        if value in stack:
            return
        former = [other for other in stack if not other.on and other.tag == value.tag]
        if former:
            stack[stack.index(former[0])] = value
        else:
            self._values[value.place.key] = [*stack, value]

    def _above(self, value: Value) -> Value | None:
        stack = self._of(value.place)
        later = stack[stack.index(value) + 1 :] if value in stack else []
        return next((other for other in later if other.on), None)

    def _of(self, place: Place) -> list[Value]:
        stack = self._values.get(place.key, [])
        # Else those were of an owner long gone, whose id has been given anew.
        return stack if stack and stack[0].place.owner() is place.owner() else []
