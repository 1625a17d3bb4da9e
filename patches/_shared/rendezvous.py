"""Where ranks meet before something that takes all of them, so that one that is alone says so and ends.

A rendezvous uses the store that started the job and no collective, so a rank that waits can look around. The
rank that comes first is its host and looks for the others; the others look at a few keys, so that a look
costs them the same however many ranks there are. On every rank a thread answers, when another rank asks,
where that rank's main thread is and what it waits in.

A rendezvous ends with an error where it is certain that it would last forever:

- The ranks came for different things: what follows takes all of them for one.
- An absent rank has ended: its exit handlers ran.
- An absent rank waits at another rendezvous. That one takes every rank, those here too, and they are here.
- Every absent rank waits in a collective of the whole job that is not asynchronous and that the host has not
  started: such a collective takes the host, which is here. *Waits* means that through ``STILL`` answers, each
  given anew, its main thread has not left one call of torch's or DeepSpeed's that returns when the collective
  is over. Every absent rank, because one that is late may be what the rest wait for.

The second and third hold while a rank does such things in one thread. Where another thread has come to a
rendezvous, or is in the script's own code or in torch's distributed (it may start what the main thread of
another rank waits for), on whichever rank, only the end of a rank counts.

Nothing else is certain. A rank that has started more collectives than the others, and stands still, proves
nothing: they may be asynchronous, or messages to one rank (gloo counts both alike), and it may write a file,
sit in a debugger or wait for the device. A rank whose process is stopped gives no answers. All these are
waited for, then warned of; after half an hour the others go on, as they would have without a rendezvous.

What was counted belongs to one process group: where that is destroyed and made anew, counting starts again,
so that a rank whose process is a fresh one has come to as many as the rest.

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
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from vlmpatch.api import Patch

from .distributed import group_name, job_store, named, rank, run_prefix, there, world

LOOK = 3.0  # seconds between two looks at where the others are
STILL = 10  # answers through which an absent rank must have waited in one place
SOON = 30.0  # seconds until the warning
WAIT = 1700.0  # seconds until no rank is waited for: just before DeepSpeed's own half hour is over
ASKED, PLACE, ENDED, OFF = "vlmpatch/asked", "vlmpatch/place", "vlmpatch/ended", "vlmpatch/off"
THREADS = "vlmpatch/threads"  # somewhere another thread than the main one has come

_held: Counter[str] = Counter()  # in the process group of ``_counted_in``
_counted_in: list[weakref.ref[Any]] = []
_patches: dict[str, Patch] = {}  # those that hold one
_answering: list[tuple[threading.Thread, weakref.ref[Any]]] = []  # and in which process group
_waiting: list[str] = []  # the rendezvous this rank waits at


class Alone(RuntimeError):
    """Some ranks will not come to a rendezvous, or came for something else; the text says which."""


def attend(patch: Patch) -> None:
    """Answer other ranks' questions from now on; called on every rank. Cheap when called again."""
    _patches[patch.id] = patch
    if world() == 1:
        return
    group = _group()
    if any(thread.is_alive() and of() is group for thread, of in _answering):
        return
    stop, of = threading.Event(), weakref.ref(group)
    thread = threading.Thread(target=_answer, args=(stop, of), name="vlmpatch-rendezvous", daemon=True)
    _answering[:] = [(thread, of)]
    atexit.register(_leave, stop, thread, os.getpid())
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
    if threading.current_thread() is not threading.main_thread():
        store.set(THREADS, "-")
    if not any(of() is _group() for of in _counted_in):
        _held.clear()
        _counted_in[:] = [weakref.ref(_group())]
    _held[what] += 1
    _waiting[:] = [f"{what}/{_held[what]}"]
    try:
        over = _Rendezvous(patch, store, what, told, why).wait()
    except RuntimeError:  # a store that has ended, or of a script's own: as it would be without a rendezvous
        over = ""
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
        while not there(self.store, f"{self.base}/all"):
            waited = time.monotonic() - self.start
            if there(self.store, f"{self.base}/over"):
                return str(self.store.get(f"{self.base}/over").decode())
            if there(self.store, OFF) or waited > WAIT:
                return ""
            if self.host and waited - self.looked > LOOK:
                self.looked = waited
                self._look_around(waited)
            if waited > SOON and not warned and there(self.store, f"{self.base}/late"):
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
        self.absent = [rank for rank in self.absent if not there(self.store, f"{self.base}/{rank}")]
        for other in self.absent:
            _hear(self.store, other, self.places[other])
        heard = [self.places[other] for other in self.absent]
        threads = _others_at_work() or there(self.store, THREADS)
        if _never_over(heard, self.mine, threads):
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


def _hear(store: Any, other: int, heard: list[str]) -> None:
    """What rank ``other`` has answered last, or that it has ended."""
    if there(store, f"{ENDED}/{other}"):
        heard.append(HAS_ENDED)
    elif there(store, f"{PLACE}/{other}"):
        heard.append(store.get(f"{PLACE}/{other}").decode())


HAS_ENDED = json.dumps({"place": "has ended"})


def _never_over(absent: Iterable[list[str]], mine: dict[str, int], threads: bool) -> bool:
    """Whether ranks that have answered so cannot come any more, for a reason that is given above."""
    told = [[json.loads(text) for text in heard[-STILL:]] for heard in absent]
    if any(heard[-1] == HAS_ENDED for heard in absent if heard):
        return True
    if threads or not told:
        return False
    return any(map(_waits_elsewhere, told)) or all(_waits_for_the_host(answers, mine) for answers in told)


def _stands_still(answers: list[dict[str, Any]]) -> bool:
    """Through as many answers, each one of its own."""
    new = len({answer["asked"] for answer in answers}) == STILL
    return new and len({json.dumps([answer["at"], answer["waiting"]]) for answer in answers}) == 1


def _waits_elsewhere(answers: list[dict[str, Any]]) -> bool:
    return _stands_still(answers) and answers[-1]["waiting"] not in ([], _waiting)


def _waits_for_the_host(answers: list[dict[str, Any]], mine: dict[str, int]) -> bool:
    if not _stands_still(answers) or any(answer["blocked"] not in mine for answer in answers):
        return False
    group = answers[-1]["blocked"]
    return bool(answers[-1]["collectives"].get(group, 0) > mine[group])


def collectives() -> dict[str, int]:
    """How many collectives this rank has started in each group that has every rank, by group name."""
    dist = sys.modules["torch.distributed"]
    counts = {}
    for group, name in list(dist.distributed_c10d._world.pg_names.items()):
        with contextlib.suppress(RuntimeError, ValueError):  # no such count; no member of it
            if len(dist.get_process_group_ranks(group)) == world():
                counts[str(name)] = int(group._get_sequence_number_for_group())
    return counts


def _answer(stop: threading.Event, of: weakref.ref[Any]) -> None:
    here, known = rank(), 0
    with contextlib.suppress(RuntimeError, ValueError, AttributeError):  # the group and its store are gone
        store = _store()
        with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError):
            store = store.clone()  # so as not to wait where the main thread waits
        while not stop.wait(LOOK / 3):
            if of() is not _group():  # another has been made: another thread answers there
                return
            if _switched_off():
                store.set(OFF, "-")
                return
            asked = store.add(ASKED, 0)
            if asked != known:
                known = asked
                if _others_at_work():
                    store.set(THREADS, "-")
                store.set(f"{PLACE}/{here}", json.dumps(_whereabouts(asked)))


def _whereabouts(asked: int) -> dict[str, Any]:
    frame: Any = sys._current_frames().get(threading.main_thread().ident or 0)
    at = [id(frame), frame.f_lasti if frame else 0]
    blocked = blocked_in(frame)
    inner = frame
    while frame is not None and _in_a_package(frame):
        frame = frame.f_back
    shown = frame or inner
    place = f"is at {shown.f_code.co_filename}:{shown.f_lineno}" if shown else "has no main thread"
    answer = {"asked": asked, "at": at, "place": place, "waiting": list(_waiting), "blocked": blocked}
    return {**answer, "collectives": collectives()}


def _in_a_package(frame: Any) -> bool:
    return f"{os.sep}site-packages{os.sep}" in frame.f_code.co_filename or "vlmpatch" in _module(frame)


def _others_at_work() -> bool:
    """Whether a thread beside the main one and this one may start a collective."""
    known = {threading.main_thread().ident, threading.get_ident()}
    frames = [frame for thread, frame in sys._current_frames().items() if thread not in known]
    return any(_at_work(inner) for frame in frames for inner in _stack(frame))


def _at_work(frame: Any) -> bool:
    """In the script's own code, or in what torch and DeepSpeed do between ranks."""
    if str(frame.f_globals.get("__name__")).startswith(("torch.distributed.", "deepspeed.")):
        return True
    library = frame.f_code.co_filename.startswith((STANDARD, "<frozen "))
    return not (library or _in_a_package(frame))


STANDARD = os.path.dirname(os.__file__) + os.sep


def _stack(frame: Any) -> Iterator[Any]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def blocked_in(frame: Any) -> str | None:
    """The name of the group in whose collective a thread with this innermost frame waits; None where in none.

    The innermost frame must be the collective's own: one that sleeps, prints or debugs has others within.
    """
    if frame is not None and frame.f_globals.get("__name__") == TIMED:
        frame = frame.f_back  # DeepSpeed's calls go through it
    if frame is None:
        return None
    module, function = frame.f_globals.get("__name__"), frame.f_code.co_name
    values = frame.f_locals
    if module == COLLECTIVES and function in SYNCHRONOUS and not values.get("async_op"):
        return _name(values.get("group"))
    if module == HANDLES and function == "wait":
        handle = values.get("self")
        params = getattr(handle, "params", None) or [getattr(handle, "_AllGatherHandle__param", None)]
        return _name(getattr(params[0], "ds_process_group", None)) if params[0] is not None else None
    return None


COLLECTIVES, HANDLES = "torch.distributed.distributed_c10d", "deepspeed.runtime.zero.partition_parameters"
TIMED = "deepspeed.utils.nvtx"
SYNCHRONOUS = frozenset(
    f"{kind}{form}"
    for kind, forms in {
        "all_gather": ("", "_into_tensor", "_coalesced"),
        "all_reduce": ("", "_coalesced"),
        "all_to_all": ("", "_single"),
        "reduce_scatter": ("", "_tensor"),
        "barrier": ("",),
    }.items()
    for form in forms
)


def _name(group: Any) -> str | None:
    """Of a group; without one, of that of all ranks."""
    try:
        return group_name(group or sys.modules["torch.distributed"].group.WORLD)
    except (KeyError, AttributeError):  # it has been destroyed; not one of torch's
        return None


def _module(frame: Any) -> Any:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _leave(stop: threading.Event, thread: threading.Thread, process: int) -> None:
    if os.getpid() != process:  # a child that the rank has forked ends, not the rank
        return
    stop.set()
    thread.join(2.0)
    with contextlib.suppress(Exception):  # the store may have ended with another rank
        _store().set(f"{ENDED}/{rank()}", "-")


def _group() -> Any:
    """The process group of all ranks; it is another one where it was destroyed and made anew."""
    return sys.modules["torch.distributed"].group.WORLD


def _store() -> Any:
    """A corner of the job's store that belongs to this run."""
    return sys.modules["torch.distributed"].PrefixStore(run_prefix(), job_store())
