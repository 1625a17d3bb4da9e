"""In which order things can happen to a patch and its target."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

# Every event, and what must have happened before it makes sense.
EVENTS = {
    "target": None,  # the target is imported
    "vlmpatch": None,  # so are we
    "disabled": "vlmpatch",  # a block begins and ends
    "undo": "vlmpatch",
    "redo": "vlmpatch",
    "copy": "vlmpatch",  # a second copy of vlmpatch starts
    "reload": "target",
    "second": "target",  # another class is asked of the same module: we are told of it once more
}
Order = tuple[str, ...]


def every() -> Iterator[Order]:
    """Every order of all events in which nothing comes before what it needs."""
    for order in itertools.permutations(EVENTS):
        place = {event: index for index, event in enumerate(order)}
        if all(before is None or place[before] < place[event] for event, before in EVENTS.items()):
            yield order


def some(count: int, seed: str) -> list[Order]:
    """``count`` orders that between them have as many events right after each other as may be."""
    chosen: list[Order] = []
    pool = random.Random(seed).sample(ALL, min(len(ALL), 40 * count))
    seen: set[tuple[str, str]] = set()
    for _ in range(min(count, len(pool))):
        best = max(pool, key=lambda order: len(set(itertools.pairwise(order)) - seen))
        pool.remove(best)
        seen |= set(itertools.pairwise(best))
        chosen.append(best)
    return chosen


ALL = list(every())
