"""What is remembered of a script's own objects: of each one, whatever it says of being equal to another.

A dictionary with weak keys asks an object for its hash, which one that says when it is equal may not have.
"""

from __future__ import annotations

from typing import Any
from weakref import ref


class ByIdentity:
    """Values of objects, for as long as these live."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[ref[Any], Any]] = {}

    def get(self, thing: Any) -> Any:
        """The value of ``thing``, or None."""
        held = self._held.get(id(thing))
        return held[1] if held is not None and held[0]() is thing else None

    def put(self, thing: Any, value: Any) -> None:
        """Remember ``value`` of ``thing``."""
        key = id(thing)

        def gone(reference: ref[Any]) -> None:
            held = self._held.get(key)
            if held is not None and held[0] is reference:
                del self._held[key]

        self._held[key] = ref(thing, gone), value
