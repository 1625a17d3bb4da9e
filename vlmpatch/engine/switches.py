"""Which patches are off, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable

BY_ENVIRONMENT = "VLMPATCH_DISABLE names it"
UNDONE = "undone by vlmpatch.undo()"
PAUSED = "inside vlmpatch.disabled()"


class Switches:
    """What the environment, ``undo`` and ``disabled`` have said; the caller holds the engine's lock."""

    def __init__(self) -> None:
        self.off: dict[str, str] = {}  # until redo()
        self._blocks: dict[Hashable, Collection[str]] = {}  # of disabled(): which patches each keeps off
        self.flips: Counter[str] = Counter()  # how often each was switched off

    def reason(self, id_: str) -> str | None:
        """Why ``id_`` is off, or None."""
        return self.off.get(id_) or (PAUSED if self.paused(id_) else None)

    def switch_off(self, ids: Collection[str], reason: str) -> None:
        """Off until ``redo``; what was off before keeps its reason."""
        self.off = {**dict.fromkeys(ids, reason), **self.off}
        self.flips.update(ids)

    def redo(self, ids: Collection[str]) -> None:
        """Take back ``undo`` for ``ids``; what the environment said stands."""
        for id_ in ids:
            if self.off.get(id_) == UNDONE:
                del self.off[id_]

    def paused(self, id_: str) -> bool:
        """Whether ``id_`` is in a block now."""
        return any(id_ in ids for ids in self._blocks.values())

    def pause(self, block: Hashable, ids: Collection[str]) -> None:
        """A block begins."""
        self._blocks[block] = ids
        self.flips.update(ids)

    def unpause(self, block: Hashable) -> None:
        """A block ends, if it has begun."""
        self._blocks.pop(block, None)
