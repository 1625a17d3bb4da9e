"""Do the ranks of a group stand still forever? Found out over the store, without a collective.

A rank that stands still gives *heartbeats*: at each look a word under a key of its own, with a number that
grows and a nonce of this process. What a run before has left in the store gives no heartbeats, so none of its
processes is taken for a rank of this one. One of the ranks that stand still reads the others' heartbeats, the
*reader*; the rest look at two keys, so that a look costs each rank the same however many there are.

Nothing is concluded before every rank of the group has stood still through two of the reader's looks.
Where their gathers then differ, each is asked for its last ones; where those part, each is asked whether
it still stands where it stood; only when every one has said so are they told that it is over, and that
word must stand for some looks: a rank that moves takes back what it said, and the reader its word.

Why that is forever: a group runs its gathers in the order in which each rank starts them, and each takes
every rank. Where the ranks part, each has started a gather of another size than the rest, so that one is
never over; whatever they start later comes after it. Gathers of one size do go through, of whatever
parameters: ranks that part there may be at a long pause, and are warned that their values are mixed.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .distributed import named

KEPT = 4000  # gathers a rank remembers; ranks that part do so within one step
AHEAD = 100  # gathers a rank may have started after the one it waits in
SURE = 4  # looks for which the word that it is over must stand
LONG = 5  # times as long as ranks must stand still, before one is told that it is waited for
UNCERTAIN = "The ranks stand still, in different gathers as it seems; not all of them were counted."
MIXED = "The ranks have gathered different parameters of one size at once: their values are mixed."
_MASK = (1 << 61) - 1


class Gather(NamedTuple):
    """One gather: its number in this process and group, first parameter, elements; a digest of all so far."""

    number: int
    id: int
    size: int
    digest: int


class Heartbeat(NamedTuple):
    """What a rank says at a look."""

    nonce: str
    looks: int
    number: int
    digest: int
    whole: int  # it has seen every gather of its group
    agreed: str  # the case it has looked into again

    @classmethod
    def read(cls, text: bytes) -> Heartbeat:
        """From the store."""
        nonce, looks, number, digest, whole, agreed = text.decode().split(" ")
        return cls(nonce, int(looks), int(number), int(digest), int(whole), agreed)

    def goes_on(self, before: Heartbeat) -> bool:
        """Whether this rank has looked since ``before``, and has not moved."""
        return self[:1] == before[:1] and self[2:5] == before[2:5] and self.looks > before.looks


class RankMonitor:
    """Where one rank of one group stands; tells the others, and finds out where they do.

    Args:
        store: a ``torch.distributed`` store, or what has its ``set``, ``get``, ``check``, ``multi_get``
            and ``compare_set``.
        prefix: begins every key: this incarnation of the job, this group.
        ranks: the group's ranks, as the world counts them.
        place: of this rank among them.
        still: seconds without a gather after which a rank stands still.
        words: makes the message for ranks that have parted, from where they did.
    """

    def __init__(
        self,
        store: Any,
        prefix: str,
        ranks: Sequence[int],
        place: int,
        still: float,
        words: Callable[[str], str],
    ) -> None:
        self.store, self.prefix, self.ranks, self.place = store, prefix, list(ranks), place
        self.still, self.words = still, words
        self.nonce = uuid.uuid4().hex[:12]
        self.last: deque[Gather] = deque([Gather(0, -1, 0, 0)], maxlen=KEPT)
        self.names: dict[int, str] = {}
        self.whole = True
        self._at, self._since, self._looks = 0, 0.0, 0
        self._agreed, self._ends, self._claim = "-", 0, b""
        self._reader = Reader(self)

    def note(self, id_: int, size: int) -> None:
        """A gather of ``size`` elements that begins with parameter ``id_`` is about to start."""
        number, digest = self.last[-1].number, self.last[-1].digest
        # One append, so that a thread that reads the list finds number and parameter together.
        self.last.append(Gather(number + 1, id_, size, (digest * 1_000_003 ^ id_ + 1) & _MASK))

    def look(self, now: float) -> tuple[str, str]:
        """What is to be done: nothing, ``("warn", words)`` or ``("end", words)``."""
        here = self.last[-1]
        if here.number != self._at:
            if self._agreed != "-":
                self._heartbeat(here, "-")
            self._at, self._since, self._agreed, self._ends = here.number, now, "-", 0
            return "", ""
        if now - self._since < self.still:
            return "", ""
        self._looks += 1
        self._heartbeat(here, self._agreed)
        done = self._heed(here)
        if self._reads():
            self._reader.look(now - self._since)
        return done

    def _heartbeat(self, here: Gather, agreed: str) -> None:
        heartbeat = (self.nonce, self._looks, here.number, here.digest, int(self.whole), agreed)
        self.store.set(self.key("heartbeat", self.place), " ".join(map(str, heartbeat)))

    def key(self, what: str, place: int) -> str:
        """The store's key for what concerns the rank at ``place``."""
        return f"{self.prefix}/{what}/{place}"

    def found(self, key: str) -> bytes:
        """What the store has under ``key``, or nothing."""
        return bytes(self.store.get(key)) if self.store.check([key]) else b""

    def _heed(self, here: Gather) -> tuple[str, str]:
        """Do what the reader has asked this rank, of this process, standing here."""
        text = self.found(self.key("word", self.place))
        word = json.loads(text) if text else {}
        if (word.get("nonce"), word.get("number")) != (self.nonce, here.number):
            return "", ""
        if word["kind"] == "tell":
            self.store.set(self.key("report", self.place), json.dumps(self.report()))
        elif word["kind"] == "parted":
            self._agreed = word["case"]
        elif word["kind"] == "warn":
            return "warn", word["text"]
        over = word["kind"] == "end" and word["case"] == self._agreed != "-"
        self._ends = self._ends + 1 if over else 0
        return ("end", word["text"]) if self._ends >= SURE else ("", "")

    def report(self) -> dict[str, Any]:
        """The last gathers, and what their parameters are called."""
        last = [gather for gather in self.last.copy() if gather.number]
        ids = [gather.id for gather in last]
        names = {str(id_): self.names.get(id_, f"parameter {id_}") for id_ in set(ids)}
        report = {"nonce": self.nonce, "from": last[0].number - 1 if last else 0, "ids": ids, "names": names}
        return {**report, "sizes": [gather.size for gather in last]}

    def _reads(self) -> bool:
        """Whether this rank is the reader: no rank but itself has renewed the mark since its last look."""
        key = f"{self.prefix}/reader"
        claim = self.found(key)
        if claim != self._claim:
            self._claim = claim
            return False
        mine = f"{self.nonce} {self._looks}".encode()
        self._claim = bytes(self.store.compare_set(key, claim.decode(), mine.decode()))
        return self._claim == mine


class Reader:
    """What the reader of a group remembers from look to look."""

    def __init__(self, monitor: RankMonitor) -> None:
        self.monitor = monitor
        self.places = range(len(monitor.ranks))
        self.before: list[Heartbeat] | None = None
        self.stage = self.case = self.text = ""

    def look(self, waited: float) -> None:
        """Read every heartbeat, and say the next word where all ranks stand still and not in one place."""
        heartbeats = self._stood_still()
        if heartbeats is None or len({(heartbeat.number, heartbeat.digest) for heartbeat in heartbeats}) == 1:
            return
        if self.stage == "":
            self._say("tell", heartbeats)
        elif self.stage == "tell":
            self._compare(heartbeats, waited)
        elif self.stage == "parted" and all(heartbeat.agreed == self.case for heartbeat in heartbeats):
            self._say("end", heartbeats)

    def _stood_still(self) -> list[Heartbeat] | None:
        """All heartbeats, when each has gone on since the ones before and no rank has moved."""
        keys = [self.monitor.key("heartbeat", place) for place in self.places]
        if not self.monitor.store.check(keys):
            return None
        heartbeats = [Heartbeat.read(bytes(text)) for text in self.monitor.store.multi_get(keys)]
        if self.before is None or any(
            (heartbeat.nonce, heartbeat.number) != (then.nonce, then.number)
            for heartbeat, then in zip(heartbeats, self.before, strict=True)
        ):
            if self.stage in ("parted", "end"):
                self._say("calm", heartbeats)
            self.before, self.stage = heartbeats, ""
            return None
        if not all(heartbeat.goes_on(then) for heartbeat, then in zip(heartbeats, self.before, strict=True)):
            return None  # a rank has not looked since: the ones before stay the measure
        self.before = heartbeats
        return heartbeats

    def _compare(self, heartbeats: list[Heartbeat], waited: float) -> None:
        keys = [self.monitor.key("report", place) for place in self.places]
        if not self.monitor.store.check(keys):
            return
        reports = [json.loads(bytes(text)) for text in self.monitor.store.multi_get(keys)]
        if [report["nonce"] for report in reports] != [heartbeat.nonce for heartbeat in heartbeats]:
            return
        apart, stuck = first_mismatch(reports, "ids"), first_mismatch(reports, "sizes")
        if apart is None:
            if waited > LONG * self.monitor.still:
                self.text = waiting(reports, self.monitor.ranks)
                self._say("warn", heartbeats)
            return
        said = told(reports, self.monitor.ranks, apart)  # where it began, if they went on from there
        fatal = stuck is not None and all(
            heartbeat.whole and heartbeat.number - stuck <= AHEAD for heartbeat in heartbeats
        )
        self.case = uuid.uuid4().hex
        self.text = self.monitor.words(said) if fatal else f"{MIXED if stuck is None else UNCERTAIN} {said}"
        self._say("parted" if fatal else "warn", heartbeats)

    def _say(self, kind: str, heartbeats: list[Heartbeat]) -> None:
        self.stage = kind
        for place, heartbeat in enumerate(heartbeats):
            word = {"kind": kind, "nonce": heartbeat.nonce, "number": heartbeat.number}
            word |= {"case": self.case, "text": self.text}
            self.monitor.store.set(self.monitor.key("word", place), json.dumps(word))


def first_mismatch(reports: Sequence[dict[str, Any]], what: str) -> int | None:
    """How many gathers are alike in ``what``, or None while one rank is only ahead of another."""
    start = max(report["from"] for report in reports)
    end = min(report["from"] + len(report["ids"]) for report in reports)
    for number in range(start, end):
        if len({report[what][number - report["from"]] for report in reports}) > 1:
            return number
    return None


def told(reports: Sequence[dict[str, Any]], ranks: Sequence[int], number: int) -> str:
    """Where the ranks part and how often each has run what, in words."""
    here = [report["ids"][number - report["from"]] for report in reports]
    names = {id_: report["names"][str(id_)] for report, id_ in zip(reports, here, strict=True)}
    at = _by_rank({rank: names[id_] for rank, id_ in zip(ranks, here, strict=True)})
    counts = [Counter(report["ids"]) for report in reports]
    times = [
        f"{name}: "
        + _by_rank({rank: f"{count[id_]} times" for rank, count in zip(ranks, counts, strict=True)})
        for id_, name in sorted(names.items())
    ]
    return f"Gather {number + 1} of this run is {at}. Gathered so far: {'; '.join(times[:4])}"


def waiting(reports: Sequence[dict[str, Any]], ranks: Sequence[int]) -> str:
    """Who waits for whom, in words."""
    numbers = [report["from"] + len(report["ids"]) for report in reports]
    behind = [rank for rank, number in zip(ranks, numbers, strict=True) if number == min(numbers)]
    most = reports[numbers.index(max(numbers))]
    name = (
        most["names"][str(most["ids"][min(numbers) - most["from"]])] if most["from"] <= min(numbers) else ""
    )
    return f"{named(behind)} did not come to gather {min(numbers) + 1} ({name}) for long; the others wait."


def _by_rank(values: dict[int, str]) -> str:
    """``x on rank 0, y on ranks 1 and 2``."""
    ranks: dict[str, list[int]] = {}
    for rank, value in values.items():
        ranks.setdefault(value, []).append(rank)
    return ", ".join(f"{value} on {named(found)}" for value, found in ranks.items())
