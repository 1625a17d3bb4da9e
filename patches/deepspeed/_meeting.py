"""Where ranks meet before something that takes all of them, so that one that is alone says so and ends.

A meeting uses the store that started the job and no collective, so whoever waits can look around. On every
rank a thread answers, when somebody asks, where that rank's main thread is and how many collectives it has
started. A rank that is absent from the meeting and waits at another, or that has started a collective those
at the meeting have not and does not move, waits for them while they wait for it: that can never end and is
said within seconds. A rank that is merely late is waited for.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from collections import Counter
from typing import Any

from vlmpatch.api import Patch

LOOK = 3.0  # seconds between two looks at where the others are
STILL = 3  # looks at which an absent rank must have been in one place
SOON = 30.0  # seconds until the warning
WAIT = 1700.0  # seconds until the error: just before DeepSpeed's own half hour is over
ASKED, PLACE, ENDED = "vlmpatch/asked", "vlmpatch/place", "vlmpatch/ended"

_held: Counter[str] = Counter()
_answering: list[threading.Thread] = []
_waiting: list[str] = []  # the meeting this rank waits at


class Alone(RuntimeError):
    """Some ranks did not come to a meeting, or came for something else; the text says which."""


def attend(patch: Patch) -> None:
    """Answer other ranks' questions from now on; called on every rank. Cheap when called again."""
    dist = sys.modules["torch.distributed"]
    if any(thread.is_alive() for thread in _answering):
        return
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    stop = threading.Event()
    thread = threading.Thread(target=_answer, args=(patch, stop), name="vlmpatch-meeting", daemon=True)
    _answering[:] = [thread]
    atexit.register(_leave, stop, thread)
    thread.start()


def meet(patch: Patch, what: str, told: str = "", why: str = "") -> None:
    """Wait until every rank has come to this meeting, the next one for ``what``.

    Args:
        patch: who holds it; what it warns of names that patch.
        what: what is about to be done, as it stands in messages.
        told: must be the same on every rank, such as the name of a module.
        why: what to change, for the message.

    Raises:
        Alone: a rank will not come, or came with something else to do.
    """
    dist = sys.modules["torch.distributed"]
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    _held[what] += 1
    rank, ranks, store = dist.get_rank(), range(dist.get_world_size()), _store()
    keys = {other: f"vlmpatch/meet/{what}/{_held[what]}/{other}" for other in ranks}
    store.set(keys[rank], told or "-")
    _waiting[:] = [f"{what}/{_held[what]}"]
    try:
        absent = _wait(patch, what, keys, why)
    finally:
        _waiting.clear()
    if absent:
        raise Alone(absent)
    said = [store.get(keys[other]).decode() for other in ranks]
    if len(set(said)) > 1:
        words = "; ".join(f"{text} on rank {other}" for other, text in enumerate(said[:8]))
        raise Alone(f"{what}: the ranks do not do the same: {words}. {why}")


def _wait(patch: Patch, what: str, keys: dict[int, str], why: str) -> str | None:
    """Until all are there: None, or why that will not be."""
    store, mine = _store(), collectives()
    places: dict[int, list[str]] = {other: [] for other in keys}
    start, looked, pause = time.monotonic(), 0.0, 0.005
    while absent := [other for other, key in keys.items() if not store.check([key])]:
        waited = time.monotonic() - start
        if waited - looked > LOOK:
            looked = waited
            lost = [other for other in absent if _lost(store, other, mine, places[other])]
            if lost or waited > min(SOON, WAIT):
                words = _words(what, keys, absent, places, waited, why)
                if lost or waited > WAIT:
                    return words
                patch.warn(what, f"{words} Still waiting.")
            store.add(ASKED, 1)
        time.sleep(pause)
        pause = min(2 * pause, 0.5)
    return None


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


def _words(
    what: str, keys: dict[int, str], absent: list[int], seen: dict[int, list[str]], waited: float, why: str
) -> str:
    here = [other for other in keys if other not in absent]
    places = [
        f"rank {other} {json.loads(seen[other][-1])['place']}" for other in absent[:4] if seen.get(other)
    ]
    where = f" ({'; '.join(places)})" if places else ""
    return (
        f"{what} was called on {named(here)} and not on {named(absent)} within {waited:.0f} s{where}. "
        f"Under ZeRO-3 every rank holds a part of each parameter, so every rank has to call it. {why}"
    ).strip()


def named(ranks: list[int]) -> str:
    """``rank 0`` or ``ranks 1, 2 and 60 more``."""
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def collectives() -> dict[str, int]:
    """How many collectives this rank has started in each group that has every rank, by group name."""
    dist = sys.modules["torch.distributed"]
    counts = {}
    for group, name in list(dist.distributed_c10d._world.pg_names.items()):
        with contextlib.suppress(RuntimeError, ValueError):  # no such count; no member of it
            if len(dist.get_process_group_ranks(group)) == dist.get_world_size():
                counts[str(name)] = int(group._get_sequence_number_for_group())
    return counts


def _answer(patch: Patch, stop: threading.Event) -> None:
    dist = sys.modules["torch.distributed"]
    rank, known = dist.get_rank(), 0
    with contextlib.suppress(RuntimeError, ValueError, AttributeError):  # the group and its store are gone
        store = _store()
        with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError):
            store = store.clone()  # so as not to wait where the main thread waits
        while patch.active and not stop.wait(LOOK / 3):
            asked = store.add(ASKED, 0)
            if asked != known:
                known = asked
                store.set(f"{PLACE}/{rank}", json.dumps(_whereabouts(asked)))


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
        _store().set(f"{ENDED}/{sys.modules['torch.distributed'].get_rank()}", "-")


def _store() -> Any:
    """The job's store, and in it a corner for this attempt: the store outlives a restart by torchrun."""
    dist = sys.modules["torch.distributed"]
    run = [os.environ.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT")]
    return dist.PrefixStore("/".join(["vlmpatch", *run]), dist.distributed_c10d._get_default_store())
