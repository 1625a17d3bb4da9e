"""Several values for one location, one on top of the other, each taken away in any order.

Every value knows what lies below it. The topmost is what the location holds; when it goes, what lies below
comes back. When one in the middle goes, the one above inherits what lay below it, and the location is not
touched. Whatever the order, the last to go leaves the object that was there first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vlmpatch.journal.locations import Location, chain


class Override:
    """A value of ours at a location.

    Args:
        location: where.
        value: what.
        tag: whose; one that comes again takes the position it had. None: it never comes again.
        rebase: called with what lies below from now on, when that changes under us.
    """

    def __init__(
        self, location: Location, value: Any, tag: str | None, rebase: Callable[[Any], None] | None = None
    ) -> None:
        self.location = location
        self.value = value
        self.tag = tag
        self.rebase = rebase
        self.below = location.held()
        self.on = False

    def lie_on(self, below: Any) -> None:
        """What lies below is now ``below``."""
        self.below = below
        if self.rebase is not None:
            self.rebase(below)

    def rests(self) -> bool:
        """Whether what it lay on is still there, if under another library's."""
        held = self.location.held()
        return any(each is self.below for each in (held, *chain(held)))


class OverrideStack:
    """The values of all locations; the caller holds the journal's lock."""

    def __init__(self) -> None:
        self._values: dict[Any, list[Override]] = {}

    def put(self, value: Override) -> None:
        """Put ``value`` at its location: on top, or in the position it had."""
        self._enter(value)
        above = self._above(value)
        if above is None:
            value.below, value.on = value.location.held(), True
            try:
                value.location.put(value.value)
            except Exception:  # an owner that does not let itself be written to
                value.on = value.location.holds(value.value)
                if not value.on:
                    self._leave(value)
                raise
        else:
            value.below, value.on = above.below, True
            above.lie_on(value.value)

    def adopt(self, value: Override) -> None:
        """``value`` lies at its location already, over its ``below``: look after it."""
        self._enter(value)
        value.on = True

    def take(self, value: Override) -> bool:
        """Take ``value`` away; False when another library has put something on top of it since."""
        if not value.on:
            return True
        above = self._above(value)
        alone = True
        if value.location.alive and above is not None:
            alone = above.below is value.value
            if alone:
                above.lie_on(value.below)
        elif value.location.alive:
            alone = value.location.holds(value.value)
            if alone:
                value.location.put(value.below)
        value.on = False
        self._leave(value)
        return alone

    def change(self, value: Override, new: Any) -> None:
        """From now on ``value``, wherever it lies, is ``new``."""
        old, value.value = value.value, new
        above = self._above(value)
        if above is None:
            value.location.put(new)
        elif above.below is old:
            above.lie_on(new)

    def covered(self, value: Override) -> bool:
        """Whether another value of ours lies on top of ``value``, or of the position it had."""
        return self._above(value) is not None

    def overwritten(self, owner: Any) -> list[Override]:
        """``owner`` has been made anew: forget what it holds no more of ours, and return that."""
        stacks = [stack for stack in self._values.values() if stack[0].location.owner() is owner]
        gone = [value for stack in stacks if not _lies_there(stack) for value in stack]
        for value in gone:
            value.on = False
            self._values.pop(value.location.key, None)
        return gone

    def prune(self) -> None:
        """Forget locations whose owner is gone."""
        for key in [key for key, stack in self._values.items() if not (stack and stack[0].location.alive)]:
            del self._values[key]

    def _enter(self, value: Override) -> None:
        stack = self._of(value.location)
        if value in stack:
            return
        former = [other for other in stack if not other.on and other.tag == value.tag]
        if former:
            stack[stack.index(former[0])] = value
        else:
            self._values[value.location.key] = [*stack, value]

    def _leave(self, value: Override) -> None:
        stack = self._of(value.location)
        if value.tag is None and value in stack:
            stack.remove(value)
        if not any(other.on for other in stack):
            self._values.pop(value.location.key, None)

    def _above(self, value: Override) -> Override | None:
        stack = self._of(value.location)
        later = stack[stack.index(value) + 1 :] if value in stack else []
        return next((other for other in later if other.on), None)

    def _of(self, location: Location) -> list[Override]:
        stack = self._values.get(location.key, [])
        # Else those were of an owner long gone, whose id has been given anew.
        return stack if stack and stack[0].location.owner() is location.owner() else []


def _lies_there(stack: list[Override]) -> bool:
    topmost = [value for value in stack if value.on][-1]
    under_others = [getattr(each, "__func__", each) for each in chain(topmost.location.held())]
    return (
        topmost.location.holds(topmost.value)
        or getattr(topmost.value, "__func__", topmost.value) in under_others
    )
