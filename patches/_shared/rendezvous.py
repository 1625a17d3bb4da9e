"""Where ranks meet before something that takes all of them, so that one that is alone says so and ends.

A rendezvous uses the store that started the job and no collective, so a rank that waits can look around. The
rank that comes first is its host and looks for the others; the others look at a few keys, so that a look
costs them the same however many ranks there are. On every rank a thread answers, when another rank asks,
where that rank's main thread is and how many collectives it has started. A rank that is absent and waits at
another rendezvous, or that has started a collective those present have not and does not move, waits for them
while they wait for it: that can never end and is said within seconds. A rank that is merely late is waited
for, then warned of; after half an hour the others go on, as they would have without a rendezvous.

There is none where a patch was switched off on some rank for a while, since that rank has come to fewer of
them than the others, nor where a part of the ranks holds the parameters.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from vlmpatch.api import Patch

from .distributed import job_store, named, rank, run_prefix, world

LOOK = 3.0  # seconds between two looks at where the others are
STILL = 3  # looks at which an absent rank must have been in one place
SOON = 30.0  # seconds until the warning
WAIT = 1700.0  # seconds until no rank is waited for: just before DeepSpeed's own half hour is over
ASKED, PLACE, ENDED, OFF = "vlmpatch/asked", "vlmpatch/place", "vlmpatch/ended", "vlmpatch/off"

_held: Counter[str] = Counter()
_patches: dict[str, Patch] = {}  # those that hold one
_answering: list[threading.Thread] = []
_waiting: list[str] = []  # the rendezvous this rank waits at


class Alone(RuntimeError):
    """Some ranks will not come to a rendezvous, or came for something else; the text says which."""


def attend(patch: Patch) -> None:
    """Answer other ranks' questions from now on; called on every rank. Cheap when called again."""
    _patches[patch.id] = patch
    if any(thread.is_alive() for thread in _answering):
        return
    if world() == 1:
        return
    stop = threading.Event()
    thread = threading.Thread(target=_answer, args=(stop,), name="vlmpatch-rendezvous", daemon=True)
    _answering[:] = [thread]
    atexit.register(_leave, stop, thread)
    thread.start()


def rendezvous(patch: Patch, parameters: Iterable[Any], what: str, told: str = "", why: str = "") -> None:
    """Wait until every rank has come to this rendezvous, the next one for ``what``.

    Args:
        patch: the one that holds it, which its warning names.
        parameters: those that are to be gathered.
        what: what is about to be done, as it stands in messages.
        told: must be the same on every rank, such as the name of a module.
        why: what to change, for the message.

    Raises:
        Alone: a rank will not come, or came with something else to do.
    """
    if world() == 1 or not _on_every_rank(parameters):
        return
    _patches[patch.id] = patch
    store = _store()
    if _switched_off():
        store.set(OFF, "-")
        return
    _held[what] += 1
    this = _Rendezvous(patch, store, what, told, why)
    _waiting[:] = [f"{what}/{_held[what]}"]
    try:
        over = this.wait()
    finally:
        _waiting.clear()
    if over:
        raise Alone(over)


def _on_every_rank(parameters: Iterable[Any]) -> bool:
    """Whether every rank of the job holds a part of each of ``parameters``."""
    dist = sys.modules["torch.distributed"]
    groups = {id(group): group for p in parameters if (group := getattr(p, "ds_process_group", None))}
    return all(dist.get_world_size(group) == world() for group in groups.values())


def _switched_off() -> bool:
    """Whether a patch that holds one was off for a while on this rank."""
    return any(patch.pauses for patch in _patches.values())


class _Rendezvous:
    """This rank at one rendezvous."""

    def __init__(self, patch: Patch, store: Any, what: str, told: str, why: str) -> None:
        self.patch, self.store, self.what, self.why = patch, store, what, why
        self.ranks, self.base = range(world()), f"vlmpatch/meet/{what}/{_held[what]}"
        self.mine, self.start, self.looked = collectives(), time.monotonic(), 0.0
        self.places: dict[int, list[str]] = {rank: [] for rank in self.ranks}
        here = rank()
        self.absent = [other for other in self.ranks if other != here]
        store.set(f"{self.base}/{here}", told or "-")
        self.alike = f"{self.base}/told/{hashlib.sha256(told.encode()).hexdigest()[:8]}"
        store.add(self.alike, 1)
        came = store.add(f"{self.base}/come", 1)
        self.host = came == 1
        if came == len(self.ranks):
            store.set(f"{self.base}/all", "-")

    def wait(self) -> str:
        """Until all are there, or until no rank is waited for: nothing, or why this cannot be done."""
        pause, warned = 0.005, False
        while not self.store.check([f"{self.base}/all"]):
            waited = time.monotonic() - self.start
            if self.store.check([f"{self.base}/over"]):
                return str(self.store.get(f"{self.base}/over").decode())
            if self.store.check([OFF]) or waited > WAIT:
                return ""
            if self.host and waited - self.looked > LOOK:
                self.looked = waited
                self._look_around(waited)
            if waited > SOON and not warned and self.store.check([f"{self.base}/late"]):
                warned = True
                self.patch.warn(self.what, f"{self.store.get(f'{self.base}/late').decode()} Still waiting.")
            time.sleep(pause)
            pause = min(2 * pause, 0.5)
        return self._told()

    def _told(self) -> str:
        """All are there: nothing, or how what they came for differs."""
        if self.store.add(self.alike, 0) == len(self.ranks):
            return ""
        said = [self.store.get(f"{self.base}/{rank}").decode() for rank in self.ranks]
        words = "; ".join(f"{text} on rank {rank}" for rank, text in enumerate(said[:8]))
        return f"{self.what}: the ranks do not do the same: {words}. {self.why}"

    def _look_around(self, waited: float) -> None:
        self.absent = [rank for rank in self.absent if not self.store.check([f"{self.base}/{rank}"])]
        lost = [rank for rank in self.absent if _lost(self.store, rank, self.mine, self.places[rank])]
        if lost:
            self.store.set(f"{self.base}/over", self._words(waited))
        elif self.absent and waited > SOON:
            self.store.set(f"{self.base}/late", self._words(waited))
        self.store.add(ASKED, 1)

    def _words(self, waited: float) -> str:
        here = [rank for rank in self.ranks if rank not in self.absent]
        seen = {rank: self.places[rank][-1] for rank in self.absent[:4] if self.places[rank]}
        places = [f"rank {rank} {json.loads(answer)['place']}" for rank, answer in seen.items()]
        where = f" ({'; '.join(places)})" if places else ""
        return (
            f"{self.what} was called on {named(here)} and not on {named(self.absent)} within "
            f"{waited:.0f} s{where}. Under ZeRO-3 every rank holds a part of each parameter, so every rank "
            f"has to call it. {self.why}"
        ).strip()


def _lost(store: Any, other: int, mine: dict[str, int], seen: list[str]) -> bool:
    """Whether rank ``other`` cannot come any more."""
    if store.check([f"{ENDED}/{other}"]):
        seen.append(json.dumps({"place": "has ended"}))
        return True
    if not store.check([f"{PLACE}/{other}"]):
        return False
    seen.append(store.get(f"{PLACE}/{other}").decode())
    answers = [json.loads(text) for text in seen[-STILL:]]
    still = len({json.dumps([answer["at"], answer["waiting"]]) for answer in answers}) == 1
    asked = len({answer["asked"] for answer in answers}) == STILL  # each one an answer of its own
    theirs = answers[-1]["collectives"]
    ahead = any(theirs.get(name, 0) > number for name, number in mine.items())
    elsewhere = all(answer["waiting"] not in ([], _waiting) for answer in answers)
    return asked and (elsewhere or (still and ahead))


def collectives() -> dict[str, int]:
    """How many collectives this rank has started in each group that has every rank, by group name."""
    dist = sys.modules["torch.distributed"]
    counts = {}
    for group, name in list(dist.distributed_c10d._world.pg_names.items()):
        with contextlib.suppress(RuntimeError, ValueError):  # no such count; no member of it
            if len(dist.get_process_group_ranks(group)) == world():
                counts[str(name)] = int(group._get_sequence_number_for_group())
    return counts


def _answer(stop: threading.Event) -> None:
    here, known = rank(), 0
    with contextlib.suppress(RuntimeError, ValueError, AttributeError):  # the group and its store are gone
        store = _store()
        with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError):
            store = store.clone()  # so as not to wait where the main thread waits
        while not stop.wait(LOOK / 3):
            if _switched_off():
                store.set(OFF, "-")
                return
            asked = store.add(ASKED, 0)
            if asked != known:
                known = asked
                store.set(f"{PLACE}/{here}", json.dumps(_whereabouts(asked)))


def _whereabouts(asked: int) -> dict[str, Any]:
    frame: Any = sys._current_frames().get(threading.main_thread().ident or 0)
    at = [id(frame), frame.f_lasti if frame else 0]
    inner = frame
    library = f"{os.sep}site-packages{os.sep}"
    while frame is not None and (library in frame.f_code.co_filename or "vlmpatch" in str(_module(frame))):
        frame = frame.f_back
    shown = frame or inner
    place = f"is at {shown.f_code.co_filename}:{shown.f_lineno}" if shown else "has no main thread"
    return {"asked": asked, "at": at, "place": place, "waiting": list(_waiting), "collectives": collectives()}


def _module(frame: Any) -> Any:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _leave(stop: threading.Event, thread: threading.Thread) -> None:
    stop.set()
    thread.join(2.0)
    with contextlib.suppress(Exception):  # the store may have ended with another rank
        _store().set(f"{ENDED}/{rank()}", "-")


def _store() -> Any:
    """A corner of the job's store that belongs to this run."""
    return sys.modules["torch.distributed"].PrefixStore(run_prefix(), job_store())
