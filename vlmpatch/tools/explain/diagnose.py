"""A log -> the one failure it shows, or the first error that is none of ours.

Of everything that matches, the first real cause is the answer: what ranks print once another has failed
(an echo) counts only where no error is left to explain it, a warning only where nothing failed at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from vlmpatch.tools.explain import grounds, vocabulary
from vlmpatch.tools.explain.failures import Failure, Failures, Symptom
from vlmpatch.tools.explain.logs import ENDS, OWN_WORDS, Reader, occurring, standing
from vlmpatch.tools.explain.messages import OWN_LINES, Message
from vlmpatch.tools.explain.symptoms import CUT, Pattern, squeeze

KEPT = 32  # of each kind of finding; the first ones are what counts
TEXT = 8000  # characters of a message that are kept
ALIKE = 3  # messages that differ in numbers only are looked at this often
SHAPES = 20_000
NAMES = 3  # words that one thing is called by
TITLE = 300  # characters of the line that says what a report is about
APART = 2000  # characters of a description in which words that belong together may stand
GONE_ON = 2  # steps reported after an exception: it was caught
# What a title says of a report that is about a failure of something else, and of one that is about a warning.
_FAILS = (
    "<fails>|no longer work|stopped working|用不了|跑不",
    "<released>|<save>|<load>|<generate>|revision|memory|显存|oom|dataset|数据集|tokenizer|processor|install|安装|import",
)
_WARNS = ("warn|userwarning|警告|告警|use_reentrant|requires_grad|checkpoint|gradient|梯度",)
# Exceptions of the language: what lines below one say was printed by others.
_SAYS_ALL = {
    *("AssertionError", "AttributeError", "FileNotFoundError", "ImportError", "IndexError", "KeyError"),
    *("ModuleNotFoundError", "NameError", "NotImplementedError", "OutOfMemoryError", "TypeError"),
    *("UnboundLocalError", "ValueError"),
}
_INSIDE = ("  ", "\t")  # what lines within a traceback begin with
_BEGUN = "Traceback (most re"  # something failed, however soon the text is cut
_OWN_TRACES = (*(words.decode() for words in OWN_WORDS), "/vlmpatch/", "-m vlmpatch run")
_NAMED = re.compile(r"(?<![\w.])(F\d{1,3})\b")
_PACKAGES = re.compile(r"[^\s\"']{1,200}?[/\\](?:site|dist)-packages(?=[/\\])")
# Where a rank waited, as squeezed: the number of the collective, then what it is.
_COLLECTIVE = re.compile(r"worknccl\(seqnum=(\d{1,18}),(optype=\w{1,40}(?:,numelin=\d{1,18})?)")
# As people retype it: `ALLREDUCE SeqNum=4176 NumelIn=1`.
_RETYPED = re.compile(r"(?<!optype=)(?:allreduce|allgather|broadcast)seqnum=(\d{1,18}),?(numelin=\d{1,18})")
COLLECTIVES = 4096
_DIGITS = str.maketrans("", "", "0123456789")
_NAMES = "pytorch|torch|transformers|deepspeed|peft|accelerate|trl|ms-swift|axolotl|llamafactory|vlmpatch"
_VERSION = re.compile(
    rf"(?<![\w/-])({_NAMES})(?![\w/])[`\"']?(?: info| version)?(?: ?\(GPU\?\))?[`\"']?"
    r"(?:==|: version=|[:=@ -]) {0,8}[`\"'v]{0,2}(\d{1,4}\.\d{1,4}(?:\.\w{1,12}){0,3}(?:\+\w{1,16})?)",
    re.IGNORECASE,
)


class Hit(NamedTuple):
    """A symptom, and the message that shows it."""

    failure: Failure
    symptom: Symptom
    message: Message


class Diagnosis(NamedTuple):
    """What a log shows.

    ``hit`` is the answer; without one, ``first`` is the first exception nobody caught, or the last frame of
    a traceback that is cut off before its exception. ``ranks`` are those that show the same, ``versions``
    what the log says is installed, ``folders`` where its packages lie, ``active`` whether vlmpatch left a
    trace, ``own`` what it said. ``perhaps`` are failures that print ``first`` too, or come to such an end,
    where nothing tells whether this is one; ``described`` whether a person's words are all that points there.
    ``ground`` is the page that an error which nothing here knows leads to by its kind; ``beheaded``, whether
    the log begins in the middle of ``first``.
    """

    hit: Hit | None
    first: Message | None
    ranks: tuple[str, ...]
    versions: dict[str, str]
    active: bool
    perhaps: tuple[Failure, ...] = ()
    folders: frozenset[str] = frozenset()
    own: tuple[Message, ...] = ()
    described: bool = False
    ground: Failure | None = None
    beheaded: bool = False


class _Findings:
    def __init__(self, failures: Failures) -> None:
        self.known = failures.known
        self.symptoms = [(failure, each) for failure in failures.known.values() for each in failure.symptoms]
        self.hits: list[Hit] = []
        self.counts: dict[int, int] = {}
        self.errors: list[Message] = []
        self.ranks: dict[str, set[str]] = {}
        self.versions: dict[str, str] = {}
        self.shapes: dict[int, int] = {}
        self.active = False
        self.folders: set[str] = set()
        self.own: list[Message] = []
        self.cut: Message | None = None
        self.loose: list[Message] = []  # what is neither an exception nor a traceback: a person's words
        self.collectives: dict[str, str] = {}
        self.differ = False  # ranks wait in different collectives of one number
        self.begun: set[str] = set()  # ranks that have printed
        self.beheaded: set[int] = set()  # where messages are that the log begins in the middle of

    def take(self, message: Message) -> None:
        self._begin(message)
        squeezed = squeeze(message.text)
        self._compare(squeezed)
        shape = hash(squeezed.translate(_DIGITS))
        seen = self.shapes.get(shape, 0)
        if seen >= ALIKE:
            return
        if len(self.shapes) < SHAPES:
            self.shapes[shape] = seen + 1
        self._versions(message.text)
        self.active = self.active or any(trace in message.text for trace in _OWN_TRACES)
        own = squeezed.startswith("vlmpatch[")
        if message.text.startswith(OWN_LINES):
            self._own(message)
        elif len(self.folders) < KEPT:
            self.folders.update(_PACKAGES.findall(message.text))
        message = message._replace(text=message.text[-TEXT:])
        if message.cut:
            self.cut = message
        if len(self.loose) < KEPT and (words := message.words()).text.strip():
            self.loose.append(words)
        for number, (failure, symptom) in enumerate(self.symptoms):
            if symptom.own != own or not _asked(symptom, message):
                continue
            if symptom.fits(squeezed):
                self.ranks.setdefault(failure.id, set()).add(message.source)
                if self.counts.setdefault(number, 0) < KEPT:
                    self.counts[number] += 1
                    self.hits.append(Hit(failure, symptom, message))
            elif not failure.foreign and symptom.perhaps(squeezed):
                self.hits.append(Hit(failure, symptom._replace(kind="perhaps"), message))
        if message.error:
            self.errors.append(message)
            if len(self.errors) > KEPT:
                del self.errors[KEPT // 2]

    def tell(self) -> None:
        """Take what people write where the log shows nothing by itself: told apart, it is perhaps that.

        Beside an error that nothing here knows it is perhaps that too.
        """
        # The title comes before what ranks print, also where a rank has ended first.
        plain = next((number for number, each in enumerate(self.loose) if not each.source), 0)
        self.loose[: plain + 1] = self.loose[plain : plain + 1] + self.loose[:plain]
        known = {id(hit.message) for hit in self.hits if hit.symptom.kind in ("error", "echo")}
        unknown = min(
            (error for error in self.errors if id(error) not in known),
            key=lambda message: message.at,
            default=None,
        )
        if unknown and any(hit.symptom.kind == "error" for hit in self.hits):
            return
        told = [each for each in self.symptoms if _is_told(each[1])]
        first, below, _ = self.loose[0].text.partition("\n") if self.loose else ("", "", "")
        title = first[:TITLE] if below or len(self.loose) > 1 or self.cut else ""
        for message in (*self.loose, *([unknown] if unknown else [])):
            for failure, symptom in told:
                # What the title says is what the report is about; of ours it must be beyond doubt.
                named = failure.foreign and vocabulary.tells(title, symptom.told)
                kind = "told" if named else symptom.kind
                doubtful = unknown or (self.cut if kind == "perhaps" else None)
                if vocabulary.tells(message.text, symptom.told, title=title):
                    if doubtful is None:
                        self.ranks.setdefault(failure.id, set()).add(message.source)
                        self.hits.append(Hit(failure, symptom._replace(kind=kind), message))
                    else:
                        self.hits.append(Hit(failure, symptom._replace(kind="perhaps"), doubtful))
                elif doubtful is None and vocabulary.tells(message.text, symptom.told, APART):
                    self.hits.append(Hit(failure, symptom._replace(kind="perhaps"), message))

    def _begin(self, message: Message) -> None:
        if message.source not in self.begun and len(self.begun) < SHAPES:
            self.begun.add(message.source)
            if message.text.startswith(_INSIDE):
                self.beheaded.add(message.at)

    def _own(self, message: Message) -> None:
        """Keep what vlmpatch said; a line of VLMPATCH_WATCH that names a failure shows it."""
        if len(self.own) < KEPT:
            self.own.append(message)
        named = _NAMED.search(" ".join(message.text.split()))
        if named and squeeze(message.text).startswith("vlmpatchwatch:") and named[1] in self.known:
            failure = self.known[named[1]]
            self.ranks.setdefault(failure.id, set()).add(message.source)
            self.hits.append(Hit(failure, WATCHED, message))

    def _compare(self, squeezed: str) -> None:
        for match in (*_COLLECTIVE.finditer(squeezed), *_RETYPED.finditer(squeezed)):
            if len(self.collectives) < COLLECTIVES:
                self.differ = self.differ or self.collectives.setdefault(match[1], match[2]) != match[2]

    def _versions(self, text: str) -> None:
        for match in _VERSION.finditer(text):
            name = match[1].lower()
            self.versions.setdefault("torch" if name == "pytorch" else name, match[2].rstrip("."))


WATCHED = Symptom(kind="hint")  # a line of VLMPATCH_WATCH


def diagnose(
    stream: BinaryIO, failures: Failures, progress: Callable[[int], None] | None = None
) -> Diagnosis:
    """Read the log ``stream`` and say what it shows.

    Args:
        stream: the log, read once from where it stands.
        failures: what is known.
        progress: told now and then how many bytes have been read.
    """
    findings = _Findings(failures)
    if stream.seekable():
        reader = Reader(findings.take)
        reader.read(stream, progress)
        if not findings.errors and not findings.hits and reader.size > 2 * ENDS:
            stream.seek(0)
            Reader(findings.take, _words(findings.symptoms)).read(stream, progress)
        findings.tell()
        asked = _facts([hit.symptom for hit in findings.hits])
        where = occurring(stream, asked, reader.broken) if asked else {}
    else:
        asked = _facts([each for _, each in findings.symptoms])
        reader = Reader(findings.take, _words(findings.symptoms), asked)
        reader.read(stream, progress)
        findings.tell()
        where = reader.facts
    findings.active = findings.active or reader.own
    found = {fact.decode(): at for fact, at in where.items()}
    return _conclude(findings, found, reader.steps)


def _facts(symptoms: list[Symptom]) -> list[bytes]:
    """What is asked of the whole log, for ``symptoms``."""
    asked = {fact for each in symptoms for fact in (*each.seen, *each.unseen)}
    if any(each.under for each in symptoms):
        asked |= {
            word for engine in vocabulary.read().engines.values() for words in engine[:2] for word in words
        }
    return sorted(fact.encode() for fact in asked)


def _conclude(findings: _Findings, where: dict[str, int], steps: int) -> Diagnosis:
    def caught(message: Message) -> bool:
        return steps - message.steps >= GONE_ON

    under = vocabulary.under(where)
    hits = [
        hit
        for hit in _as_far_as_read(findings, where)
        if (not hit.symptom.under or not under.isdisjoint(hit.symptom.under))
        and (
            not hit.symptom.told
            or _is_told(hit.symptom)
            or any(vocabulary.tells(text, hit.symptom.told) for text in _texts(findings, hit))
        )
    ]
    hits = [hit for hit in hits if findings.differ or not hit.symptom.ranks]
    hits = [
        hit
        for hit in hits
        if hit.symptom.kind == "hint"
        or _is_told(hit.symptom)
        or not (hit.failure.foreign and caught(hit.message))
    ]
    # A line that was cut before it decides is not another's where it may be ours.
    undecided = {
        id(hit.message)
        for hit in hits
        if hit.symptom.kind == "perhaps"
        and not (hit.failure.foreign or _is_told(hit.symptom))
        and CUT in hit.message.text
    }
    hits = [
        hit
        for hit in hits
        if hit.symptom.kind != "error" or not hit.failure.foreign or id(hit.message) not in undecided
    ]
    if any(_BEGUN in each.text for each in findings.loose):  # a warning is none where something failed
        hits = [hit for hit in hits if hit.symptom.kind != "hint" or hit.symptom is WATCHED]
    title = _title(findings.loose)
    warned = [hit for hit in hits if _beside(hit, title)]
    spoken = [hit for hit in hits if hit not in warned]
    hits = spoken + [hit._replace(symptom=hit.symptom._replace(kind="perhaps")) for hit in warned]
    known = {id(hit.message) for hit in hits if hit.symptom.kind in ("error", "echo")}
    unknown = [each for each in findings.errors if id(each) not in known and not caught(each)]
    hit, first = _choose(hits, unknown, findings.cut)
    ground, said = _grounded(findings, spoken, unknown, hit, first)
    if ground:
        hit, first = None, first if first and first.cut else said
    ranks = tuple(sorted(findings.ranks[hit.failure.id] - {""})) if hit else ()
    maybe = [each for each in hits if each.symptom.kind in ("perhaps", "cut") and each.message is first]
    perhaps = () if hit else tuple({each.failure.id: each.failure for each in maybe}.values())
    described = bool(perhaps) and all(_is_told(each.symptom) for each in maybe)
    folders, own = frozenset(findings.folders), tuple(findings.own)
    beheaded = first is not None and first.at in findings.beheaded
    more = (perhaps, folders, own, described, ground, beheaded)
    return Diagnosis(hit, first, ranks, findings.versions, findings.active, *more)


def _as_far_as_read(findings: _Findings, where: dict[str, int]) -> list[Hit]:
    """What the whole log bears out.

    Where the log begins in the middle of a message, what is asked of the lines before it is not known. What
    asks for more in the message than another, and lacks no more than those lines, may be it as well as that.
    """
    borne: list[Hit] = []
    unread: list[Hit] = []
    for hit in findings.hits:
        seen = where.keys() | _within(hit)
        if _borne_out(hit.symptom, seen):
            borne.append(hit)
        elif hit.message.at in findings.beheaded and seen.isdisjoint(hit.symptom.unseen) and _of_ours(hit):
            unread.append(hit)
    doubts = [(hit, [each for each in unread if _asks_more(each, hit)]) for hit in borne]
    doubted = {hit.message.at for hit, others in doubts if others}
    kept = [hit for hit in borne if not (hit.failure.foreign and hit.message.at in doubted)]
    as_well = [each for _, others in doubts for each in others]
    return [
        hit._replace(symptom=hit.symptom._replace(kind="perhaps"))
        if hit.message.at in doubted and _of_ours(hit)
        else hit
        for hit in (*kept, *as_well)
    ]


def _of_ours(hit: Hit) -> bool:
    """Whether ``hit`` is an error that one of our failures ends in."""
    return hit.symptom.kind == "error" and not hit.failure.foreign


def _asks_more(one: Hit, other: Hit) -> bool:
    """Whether ``one`` asks of the same message all that ``other`` found in it, and more."""
    if one.message is not other.message or not _of_ours(other) or one.failure.id == other.failure.id:
        return False
    squeezed = squeeze(other.message.text)
    found = {*other.symptom.every, *(each for each in other.symptom.some if each.within(squeezed))}
    asked = {*one.symptom.every}
    return found <= asked and len(asked) + len(one.symptom.frames) > len(found) + len(other.symptom.frames)


def _beside(hit: Hit, title: str) -> bool:
    """Whether ``hit`` is a warning of ours in a report of which the title says that something else fails."""
    if hit.symptom.kind != "hint" or hit.symptom is WATCHED or hit.failure.foreign:
        return False
    squeezed, stems = squeeze(title), vocabulary.read().stems
    quoted = any(each.within(squeezed) for each in (*hit.symptom.every, *hit.symptom.some))
    fails = grounds.names_error(title) or vocabulary.tells(title, stems(_FAILS))
    return fails and not quoted and not vocabulary.tells(title, stems(_WARNS))


def _is_told(symptom: Symptom) -> bool:
    """Whether a person's words are all that ``symptom`` asks for."""
    return bool(symptom.told) and not symptom.every and not symptom.some


def _asked(symptom: Symptom, message: Message) -> bool:
    """Whether ``message`` is one that ``symptom`` is about."""
    if _is_told(symptom):
        return False  # of what is left when nothing else speaks
    return message.cut if symptom.kind == "cut" else _decides(symptom, message)


def _decides(symptom: Symptom, message: Message) -> bool:
    """Whether an echo is what the exception of ``message`` says, not a line that happened to follow it."""
    if symptom.kind != "echo" or not message.error:
        return True
    goes_on = message.error not in _SAYS_ALL
    text = message.text[max(message.text.rfind(message.line), 0) :] if goes_on else message.line
    said = squeeze(grounds.said(text))
    return any(each.within(said) for each in (*symptom.every, *symptom.some))


def _within(hit: Hit) -> set[str]:
    """What is asked of the whole log and stands in the message, where nothing is escaped any more."""
    text = hit.message.text.lower().encode() + b"\n"
    joined = text.replace(b"\n", b"") + b"\n"  # a terminal may have broken its lines
    asked = (*hit.symptom.seen, *hit.symptom.unseen)
    return {fact for fact in asked if max(standing(each, fact.encode()) for each in (text, joined)) >= 0}


def _texts(findings: _Findings, hit: Hit) -> list[str]:
    """Where a person may have told of it: beside the message or in it."""
    return [hit.message.text, *(each.text for each in findings.loose)]


def _borne_out(symptom: Symptom, seen: set[str]) -> bool:
    return (not symptom.seen or not seen.isdisjoint(symptom.seen)) and seen.isdisjoint(symptom.unseen)


def _choose(
    hits: list[Hit], unknown: list[Message], cut: Message | None
) -> tuple[Hit | None, Message | None]:
    def first(kind: str, foreign: bool) -> Hit | None:
        those = [hit for hit in hits if hit.symptom.kind == kind and hit.failure.foreign is foreign]
        # Of two symptoms in one message the one that names its patches, or that a person tells of, says more;
        # of two that are told of, the one that asks for a name.
        return min(
            those,
            key=lambda hit: (
                hit.message.at,
                not hit.symptom.patches,
                not hit.symptom.told,
                kind == "told" and min(map(len, hit.symptom.told)) > NAMES,
            ),
            default=None,
        )

    if ours := first("error", False):
        return ours, ours.message
    theirs, message = first("error", True), min(unknown, key=lambda message: message.at, default=None)
    if theirs and (message is None or theirs.message.at <= message.at):
        return theirs, theirs.message
    if message:
        return None, message
    told = first("told", False) or first("told", True)
    if left := first("echo", False) or told or first("echo", True):
        doubtful = left.failure.foreign and left.symptom.kind == "echo"
        may_be = next((hit.message for hit in hits if _may_be(hit)), None) if doubtful else None
        return (left, left.message) if may_be is None else (None, may_be)
    if cut:
        return None, cut
    watched = next((hit for hit in hits if hit.symptom is WATCHED), None)
    if left := watched or first("hint", True) or first("hint", False):
        return left, left.message
    # A line that people quote without its exception's name.
    bare = next((hit.message for hit in hits if hit.symptom.kind == "perhaps"), None)
    return None, bare


def _may_be(hit: Hit) -> bool:
    """Whether a line is quoted that may be one of our failures."""
    return hit.symptom.kind == "perhaps" and not (hit.failure.foreign or _is_told(hit.symptom))


def _grounded(
    findings: _Findings, hits: list[Hit], unknown: list[Message], hit: Hit | None, first: Message | None
) -> tuple[Failure | None, Message | None]:
    """What the kind of an error says that no symptom knows, and where; never against what may be ours."""
    read, loose = grounds.read(), findings.loose
    ours = [each for each in hits if each.symptom.kind in ("perhaps", "cut") and not each.failure.foreign]
    if ours:
        # What a person quotes elsewhere came from within the frame that a traceback is cut in.
        apart = first is not None and first.cut and all(each.message is not first for each in ours)
        page = read.cut(first) if first is not None and apart else ""
        return (findings.known[page], first) if page in findings.known else (None, None)
    pages: list[tuple[str, Message]] = []
    if hit is None and first is not None and first.error:
        # A title says it before the traceback does, which says where.
        where = {each.line: each for each in sorted(unknown, key=lambda each: (len(each.text), each.at))}
        pages = [
            (read.of(where[each.line]), each) for each in sorted(unknown, key=lambda message: message.at)
        ]
    elif hit is None or (hit.failure.foreign and hit.symptom.kind == "echo"):
        title = _title(loose)
        for number, each in enumerate(loose):
            page, line = read.quoted(each, "" if number else title)
            pages.append((page, each._replace(line=line or each.line)))
        if findings.cut:
            pages.append((read.cut(findings.cut), findings.cut))
        pages += [(read.titled(title), each) for each in loose[:1]]
    known = ((findings.known[page], each) for page, each in pages if page in findings.known)
    return next(known, (None, None))


def _title(loose: list[Message]) -> str:
    """What a report is about, as its first line says."""
    return loose[0].text.partition("\n")[0][:TITLE] if loose else ""


def _words(symptoms: list[tuple[Failure, Symptom]]) -> list[bytes]:
    """What the reader must not pass over: of each symptom a word as it is printed."""
    return sorted({*OWN_WORDS[:2], *(word for _, symptom in symptoms for word in symptom.words)})


def shown(message: Message, pattern: Pattern | None = None) -> str:
    """The line of ``message`` to quote: where ``pattern`` begins, else the decisive one; safe to print."""
    line = message.line
    if pattern is not None and not pattern.within(squeeze(line)):
        begins = pattern.head[:12]
        line = next((each for each in message.text.split("\n") if begins in squeeze(each)), line)
    return printable(line)


def printable(text: str, length: int = 240) -> str:
    """``text`` on one line, without anything a terminal would act on, cut at ``length``."""
    kept = "".join(sign if sign.isprintable() else " " for sign in text[: 4 * length])
    kept = " ".join(kept.split())
    return kept if len(kept) <= length else kept[: length - 1] + "…"
