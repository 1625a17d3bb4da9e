"""Whether a backward failed on every rank at the same place: ranks tell each other over the job's store.

A rank whose backward raised has begun some of its collectives and not the others. A rank that failed
elsewhere, or not at all, waits for what never comes, so both go on only where each has begun as many.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from .distributed import group_name, job_store, named, rank, run_prefix, there

WAIT = 60.0  # seconds for a rank to say that it failed, too
APART = (
    "vlmpatch [{patch}]: a backward failed here and not, or not at the same place, on {others}. "
    "What one rank has left the others wait in, so this training cannot go on. Let the error end the job, "
    "or make every rank skip the batch before its backward. More: python -m vlmpatch explain {patch}"
)


class Begun(NamedTuple):
    """Where a backward began, of one process group."""

    number: int  # of the group's backwards
    collectives: int  # that it had begun


_backwards: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of each process group, so far


def collectives(group: Any) -> int | None:
    """How many collectives ``group`` has begun here, or None: backends need not count."""
    with contextlib.suppress(RuntimeError, AttributeError):
        return int(group._get_sequence_number_for_group())
    return None


class Backward:
    """One backward that ranks of a group run together.

    Args:
        patch: Id of the patch that asks; ranks of one patch hear each other.
        group: The process group.
        number: Which of the group's backwards it is, the same on every rank.
    """

    def __init__(self, patch: str, group: Any, number: int) -> None:
        self.patch, self.group = patch, group
        self._key = f"{run_prefix()}/failed/{patch}/{group_name(group)}/{number}"

    def failed(self, begun: int) -> None:
        """Tell the other ranks that it failed here, with ``begun`` collectives."""
        with contextlib.suppress(RuntimeError):  # the store has ended with another rank
            job_store().set(f"{self._key}/{rank()}", str(begun))

    def ask(self, begun: int) -> None:
        """Wait for the other ranks' words.

        Raises:
            RuntimeError: a rank did not fail within a minute, or not with ``begun`` collectives.
        """
        if others := self._elsewhere(begun):
            raise RuntimeError(APART.format(patch=self.patch, others=named(others)))

    def _elsewhere(self, begun: int) -> list[int]:
        """The ranks whose backward did not fail at the same place."""
        members = sys.modules["torch.distributed"].get_process_group_ranks(self.group)
        store, until = job_store(), time.monotonic() + WAIT
        while absent := [other for other in members if not there(store, f"{self._key}/{other}")]:
            if time.monotonic() > until:
                break
            time.sleep(0.01)
        here = [other for other in members if other not in absent]
        unlike = [other for other in here if int(store.get(f"{self._key}/{other}")) != begun]
        return sorted([*absent, *unlike])


def begin(groups: Iterable[Any]) -> dict[Any, Begun]:
    """A backward that communicates in ``groups`` has begun; those that do not count are left out."""
    found: dict[Any, Begun] = {}
    for group in dict.fromkeys(groups):
        number = _backwards[group] = _backwards.get(group, 0) + 1
        if (count := collectives(group)) is not None:
            found[group] = Begun(number, count)
    return found


def ask_everywhere(patch: str, begun: dict[Any, Begun]) -> None:
    """Go on where the backward that began so has failed on every rank, and at the same place.

    Raises:
        RuntimeError: another rank did not fail, or elsewhere, and waits for this one.
    """
    since = {group: (collectives(group) or 0) - start.collectives for group, start in begun.items()}
    backwards = {group: Backward(patch, group, start.number) for group, start in begun.items()}
    for group, backward in backwards.items():
        backward.failed(since[group])
    for group, backward in backwards.items():
        backward.ask(since[group])
