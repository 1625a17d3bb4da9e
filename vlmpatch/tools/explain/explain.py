"""``python -m vlmpatch explain``: a patch, a failure, a code of doctor's, or a log, to words."""

from __future__ import annotations

import glob
import io
import json
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from vlmpatch.catalog.environment import suggestion
from vlmpatch.catalog.model import Catalog, Entry
from vlmpatch.gate import versions
from vlmpatch.tools import codes
from vlmpatch.tools.explain import failures, pages
from vlmpatch.tools.explain.diagnose import WATCHED, Diagnosis, Hit, diagnose, printable, shown
from vlmpatch.tools.explain.inputs import Text, texts
from vlmpatch.tools.explain.pages import SCHEMA
from vlmpatch.tools.explain.symptoms import squeeze
from vlmpatch.tools.view.language import Words
from vlmpatch.tools.view.page import Page

LARGE = 64 << 20  # from here on progress is shown
LOGS = (".log", ".txt", ".out", ".err")  # what a folder of logs holds
_LOG = re.compile(r"\.(?:log|txt|out|err)(?:[.-]\d{1,14}){0,3}(?:\.(?:gz|bz2|xz|zip))?$")
MOST = 1024
SENTENCE = 6  # signs of a language that has no spaces between its words
SHOWN = 4  # of what vlmpatch itself said
_EVERYWHERE = ("torch", "transformers", "deepspeed", "peft", "accelerate")


class Applies(NamedTuple):
    """Whether a patch is for the versions of a log: ``applies``, ``not here`` or ``perhaps``."""

    id: str
    verdict: str
    reason: str


def applies(entry: Entry, log: Diagnosis, modules: Mapping[str, str], say: Words) -> Applies:
    """Hold the ranges of ``entry`` against the versions in a log, or those installed here.

    What is installed here says nothing of a log that names versions itself, or that is from another place.
    """
    reasons, verdict = [], "applies"
    here = not log.versions and (not log.folders or not log.folders.isdisjoint(_own_folders()))
    for name, specifier in entry.requires.items():
        module = modules.get(name, name)
        version, origin = log.versions.get(name), say("from the log")
        if version is None and here:
            version, origin = versions.installed(name, module).version, say("in this environment")
        if version is None and name not in _EVERYWHERE and not _runs(module, log):
            reason = say("nothing of {name} shows in the log, and it is not installed here", name=name)
            return Applies(
                entry.id, "not here", reason if here else say("nothing of {name} shows in the log", name=name)
            )
        if version is None:
            verdict = "perhaps"
            reasons.append(f"{name} {specifier}")
            continue
        try:
            inside = versions.satisfies(version, specifier)
        except ValueError:
            verdict = "perhaps"
            reasons.append(f"{name} {specifier}")
            continue
        if not inside:
            return Applies(entry.id, "not here", f"{name} {version} ({origin}), {specifier}")
        reasons.append(f"{name} {version} ({origin})")
    return Applies(entry.id, verdict, ", ".join(reasons))


def _own_folders() -> set[str]:
    """Where the packages of this environment lie."""
    return {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}


def _runs(module: str, log: Diagnosis) -> bool:
    """Whether a frame of the message that decides lies in ``module``."""
    return log.first is not None and f"/{module.replace('.', '/')}/" in log.first.text


class Answer(NamedTuple):
    """A diagnosis, and what follows from it: ``why`` in both languages, ``file`` where there were several.

    ``ends`` are the patches whose words in the log are about it; ``instead`` what the file is where it is no
    text.
    """

    diagnosis: Diagnosis
    patches: tuple[Applies, ...]
    why: tuple[str, str] = ("", "")
    file: str = ""
    ends: tuple[str, ...] = ()
    instead: str = ""

    @property
    def ours(self) -> Hit | None:
        """The failure, if it is one that vlmpatch is about."""
        hit = self.diagnosis.hit
        return hit if hit and not hit.failure.foreign else None


def answer(stream: BinaryIO, catalog: Catalog, say: Words, progress: Callable[[int], None] | None) -> Answer:
    """Read a log and answer with one failure, and which of its patches are for those versions."""
    answers = [_of_text(text, catalog, say, progress) for text in texts(stream)]
    return min(answers or [_of_text(Text(io.BytesIO(), instead="empty"), catalog, say, None)], key=_tells)


def _of_text(text: Text, catalog: Catalog, say: Words, progress: Callable[[int], None] | None) -> Answer:
    stream = io.BytesIO() if text.instead else text.stream
    diagnosis = diagnose(stream, failures.every(catalog), progress)
    return _concluded(diagnosis, catalog, say)._replace(file=text.name, instead=text.instead)


def _concluded(diagnosis: Diagnosis, catalog: Catalog, say: Words) -> Answer:
    if diagnosis.hit is None or diagnosis.hit.failure.foreign:
        return Answer(diagnosis, ())
    entries = diagnosis.hit.failure.patches(catalog, diagnosis.hit.symptom)
    order = ("applies", "perhaps", "not here")
    found = [applies(entry, diagnosis, catalog.modules, say) for entry in entries]
    why = diagnosis.hit.failure.cause
    if diagnosis.hit.symptom.patches and entries:
        why = entries[0].summary, entries[0].summary_zh  # says more than what many have in common
    patches = tuple(sorted(found, key=lambda each: order.index(each.verdict)))
    ends = tuple(f"vlmpatch [{entry.id}]" for entry in diagnosis.hit.failure.patches(catalog))
    return Answer(diagnosis, patches, why, ends=ends)


def data(given: Answer, say: Words) -> dict[str, Any]:
    """The answer for ``--json``."""
    hit, first = given.ours, given.diagnosis.first
    foreign = given.diagnosis.hit if hit is None else None
    return {
        "schema": SCHEMA,
        "about": "log",
        "failure": hit.failure.id if hit else None,
        "title": say.pick(hit.failure.title) if hit else None,
        "cause": say.pick(given.why) if hit else None,
        "kind": hit.symptom.kind if hit else None,
        "instead": foreign.failure.id if foreign else None,
        "perhaps": given.diagnosis.perhaps[0].id if given.diagnosis.perhaps else None,
        "cut": first is not None and first.cut,
        "not_text": given.instead or None,
        "seen": _seen(given) if first else None,
        "line": first.at if first else None,
        "file": given.file or None,
        "ranks": list(given.diagnosis.ranks),
        "versions": given.diagnosis.versions,
        "active": given.diagnosis.active,
        "patches": [each._asdict() for each in given.patches],
        "do": _advice(given, say) if hit or foreign else [],
    }


def _seen(given: Answer) -> str:
    hit, first = given.diagnosis.hit, given.diagnosis.first
    if hit:
        there = [
            each for each in (*hit.symptom.every, *hit.symptom.some) if each.within(squeeze(hit.message.text))
        ]
        return shown(hit.message, max(there, key=lambda each: len(each.head), default=None))
    return shown(first) if first else ""


def _place(given: Answer, line: int, say: Words) -> str:
    place = say("line {line}", line=line)
    return f"{printable(given.file, 100)}, {place}" if given.file else place


def _advice(given: Answer, say: Words) -> list[str]:
    """The lines to add or change, the best first."""
    assert given.diagnosis.hit is not None
    lines = list(given.diagnosis.hit.failure.advice[say.language == "zh"])
    if given.diagnosis.active or not any(each.verdict != "not here" for each in given.patches):
        return lines
    return [
        f"import vlmpatch  # {say('first line of the script')}",
        f"python -m vlmpatch run {say('your command')} …",
    ]


def page(given: Answer, say: Words) -> Page:
    """The answer for a person."""
    made = Page()
    hit = given.ours
    if hit is None:
        _elsewhere(made, given, say)
        return made
    made.add(f"{hit.failure.id} · {say.pick(hit.failure.title)}", "head")
    made.add()
    where = _place(given, hit.message.at, say)
    ranks = given.diagnosis.ranks
    if ranks:
        where += ", " + printable(", ".join(ranks[:4]) + (" …" if len(ranks) > 4 else ""), 60)
    made.add(f"{_seen(given)} ({where})", label=say("Seen"))
    if hit.symptom is WATCHED:
        pass  # what it says is the finding
    elif hit.symptom.kind == "hint":
        made.add("\t" + say("This is a warning, not an error: nothing in the log says that the run failed."))
        if hit.failure.harmless[0]:
            made.add("\t" + say.pick(hit.failure.harmless))
    elif hit.symptom.kind == "told":
        made.add("\t" + say(_DESCRIBED))
    elif hit.symptom.unconfirmed(squeeze(hit.message.text)):
        made.add("\t" + say(_MESSAGE_ONLY))
    made.add(say.pick(given.why), label=say("Why"))
    _patches(made, given, say)
    made.add(say(_trace(given)), label="vlmpatch")
    _own_words(made, given, say, hit.failure)
    for number, line in enumerate(_advice(given, say)):
        made.code(line, say("Do this") if number == 0 else say("or"))
    made.code(f"python -m vlmpatch explain {hit.failure.id}", say("More"))
    return made


def _trace(given: Answer) -> str:
    """Whether vlmpatch was active in that run."""
    if not given.diagnosis.active:
        return _NO_TRACE
    expected = any(each.verdict != "not here" for each in given.patches)
    return _STILL if expected else "It was active in that run."


def _own_words(made: Page, given: Answer, say: Words, about: failures.Failure | None = None) -> None:
    """What vlmpatch said in that run; with a failure, what it said of that."""
    own = [each for each in given.diagnosis.own if about is None or _speaks(each.text, about, given)]
    for each in own[:SHOWN]:
        made.add(f"\t{say('It said:')} {shown(each)} ({_place(given, each.at, say)})")


def _speaks(text: str, about: failures.Failure, given: Answer) -> bool:
    hit = given.diagnosis.hit
    if hit is not None and hit.message.text == text:
        return False
    ids = (*given.ends, f"explain {about.id}")
    return any(id_ in text for id_ in ids)


def _patches(made: Page, given: Answer, say: Words) -> None:
    """Which patches are for those versions; the others folded, unless there are no such."""
    label = say("Patches")
    useful = [each for each in given.patches if each.verdict != "not here"]
    for each in useful or given.patches:
        made.add(
            f"{each.id}{say.mark(': ')}{say(each.verdict)}{say.bracketed(each.reason)}", _style(each), label
        )
        label = " "
    rest = [each.id for each in given.patches if each not in useful]
    if useful and rest:
        made.add(f"{say('not here')}{say.mark(': ')}{say.listed(rest)}", "dim", label)
    if not given.patches:
        made.add(say("none yet; the advice below is what helps"), label=label)


_MESSAGE_ONLY = "The log has the message only; other programs print it too. Its traceback would tell."
_DESCRIBED = "This is from a description, not from printed output; a log would settle it."
_INSTEAD = {
    "empty": "It is empty: nothing was written to it yet, or errors went elsewhere (2>&1 sends them along).",
    "a picture": "It is a picture. explain needs text: copy it from where it was printed.",
    "a PDF": "It is a PDF. explain needs text: copy it from where it was printed.",
    "zstd": "It is packed: zstd -dc FILE | python -m vlmpatch explain -",
    "7z": "It is packed: 7z x -so FILE | python -m vlmpatch explain -",
    "a checkpoint": "It is a checkpoint of a model, not a log.",
    "a damaged archive": "It is an archive that cannot be opened.",
}
_CUT = (
    "Its traceback is cut off before the exception. Below is the last frame; the lines after it are needed, "
    "down to the one that names the error:"
)
_FOUND = "Likely cause: "  # what a line of VLMPATCH_WATCH says of what is wrong
_WATCHED = "No error shows either, but the watch found what may train wrongly, and says why:"
_NO_TRACE = "It left no trace in that run: it was not active, or had nothing to say."
_STILL = "It was active and the run failed all the same: VLMPATCH_LOG=info shows what it did. Until then:"


def _style(each: Applies) -> str:
    return {"applies": "good", "perhaps": "warn"}.get(each.verdict, "dim")


_NONE = "No failure that vlmpatch knows shows in this log."
_MAYBE = "Perhaps a failure that vlmpatch knows: the log does not say enough to be certain."


def _elsewhere(made: Page, given: Answer, say: Words) -> None:
    made.add(say(_MAYBE if given.diagnosis.perhaps else _NONE), "head")
    hit, first = given.diagnosis.hit, given.diagnosis.first
    if given.instead:
        made.add(say(_INSTEAD.get(given.instead, "It is binary data, not text.")))
        return
    if first is None:
        found = [each for each in given.diagnosis.own if _FOUND in each.text]
        made.add(say(_WATCHED if found else "No error shows in it at all."))
        for each in found[:SHOWN]:
            made.add(f"\t{printable(' '.join(each.text.split()), 600)} ({_place(given, each.at, say)})")
        if not found:
            _own_words(made, given, say)
        return
    made.add(say(_headline(given)))
    made.add()
    made.add(f"{_seen(given)} ({_place(given, first.at, say)})", label=say("Seen"))
    for number, perhaps in enumerate(given.diagnosis.perhaps):
        made.add(f"{perhaps.id} · {say.pick(perhaps.title)}", label=" " if number else say("Perhaps"))
    if first.cut:
        made.code("tail -n 100 train.log | python -m vlmpatch explain -", say("Do this"))
    elif given.diagnosis.perhaps:
        made.add("\t" + say(_DESCRIBED if given.diagnosis.described else _MESSAGE_ONLY))
    for number, perhaps in enumerate(given.diagnosis.perhaps):
        made.code(f"python -m vlmpatch explain {perhaps.id}", " " if number else say("More"))
    if hit:
        if hit.symptom.kind == "told":
            made.add("\t" + say(_DESCRIBED))
        made.add(say.pick(hit.failure.title), label=say("Why"))
        made.add("\t" + say.pick(hit.failure.cause))
        for number, line in enumerate(_advice(given, say)):
            made.code(line, say("Do this") if number == 0 else say("or"))


def _headline(given: Answer) -> str:
    first = given.diagnosis.first
    if given.diagnosis.hit:
        return "What it shows instead:"
    if first and first.cut:
        return _CUT
    return "The first uncaught error in it:" if first and first.error else "A line that could be one:"


def explain(asked: Sequence[str], catalog: Catalog, say: Words, as_json: bool = False) -> int:
    """Print the page of each patch, failure or code of ``asked``, and what the logs among them show.

    Args:
        asked: ids; logs, folders of them, patterns of their names, ``-`` for standard input; or the words of
            a message. Nothing is standard input too.
        catalog: what is known.
        say: the language.
        as_json: print data instead of a page.

    Returns:
        0 when something was explained, 1 when the logs show nothing known, 2 when something is neither.
    """
    if not asked and sys.stdin.isatty():
        wanted = say(
            "explain what? A log, a failure (F3), a patch id, or a message; - reads what is piped in."
        )
        print(wanted, file=sys.stderr)
        return 2
    found = {
        each: called for each in asked if not _holds_logs(each) and (called := pages.called(each, catalog))
    }
    rest = [each for each in asked if each not in found]
    if found and not rest:
        _show([], list(found.values()), catalog, say, as_json)
        return 0
    try:
        given = [_of_message(rest, catalog, say)] if _is_message(rest) else _of_logs(rest, catalog, say)
    except OSError as error:
        name = str(error.filename or " ".join(rest))
        hint = suggestion(name, [*catalog.entries, *failures.every(catalog).known, *codes.read()])
        sentence = "'{name}' is no patch and no failure, and as a log: {why}. {hint}"
        said = {
            "name": printable(name, 80),
            "why": say.told(error.strerror or ""),
            "hint": say.told(hint.strip()),
        }
        print(say(sentence, **said).rstrip(), file=sys.stderr)
        return 2
    _show(given, list(found.values()), catalog, say, as_json)
    return 0 if any(each.ours for each in given) else 1


def _show(
    logs: list[Answer], known: Sequence[pages.Known], catalog: Catalog, say: Words, as_json: bool
) -> None:
    """Print what is known by its name, then what the logs show; as data a list where it is more than one."""
    if as_json:
        every = [*(pages.data(each, catalog, say) for each in known), *(data(each, say) for each in logs)]
        print(json.dumps(every[0] if len(every) == 1 else every, ensure_ascii=False, indent=2))
        return
    for each in known:
        pages.page(each, catalog, say).show(sys.stdout)
    for answered in logs:
        page(answered, say).show(sys.stdout)


def _is_message(asked: Sequence[str]) -> bool:
    """Whether these words are a message that was pasted, and no names of logs."""
    if any(each == "-" or each.endswith(LOGS) or os.path.exists(each) or glob.glob(each) for each in asked):
        return False
    text = " ".join(asked)
    return len(text.split()) > 2 or (not text.isascii() and len(text) >= SENTENCE)


def _of_message(words: Sequence[str], catalog: Catalog, say: Words) -> Answer:
    return answer(io.BytesIO(" ".join(words).encode(errors="replace")), catalog, say, None)


def _of_logs(names: Sequence[str], catalog: Catalog, say: Words) -> list[Answer]:
    """An answer for each failure that the logs show, by the log that ended first: its rank died first.

    Ranks of one run mostly echo what one of them died of. An echo, a hint or an unknown error is the answer
    where no log shows a failure itself, and then that of the log that says most.

    Raises:
        OSError: one of them cannot be read, or a folder holds no log.
    """
    if not names or list(names) == ["-"]:
        return [answer(sys.stdin.buffer, catalog, say, None)]
    logs = sorted({log for name in names for log in _found(name)}, key=os.path.getmtime)[:MOST]
    alone = len(logs) == 1 and logs[0] == names[0]
    folder = names[0] if len(names) == 1 and os.path.isdir(names[0]) else ""
    answers = []
    for log in logs:
        given = _of_file(log, catalog, say)
        shown_as = os.path.relpath(log, folder) if folder else log
        answers.append(
            given if alone else given._replace(file="/".join(filter(None, (shown_as, given.file))))
        )
    shown: dict[str, Answer] = {}
    for given in answers:
        if (hit := given.diagnosis.hit) and hit.symptom.kind == "error":
            shown.setdefault(hit.failure.id, given)
    return sorted(shown.values(), key=_tells) or [min(answers, key=_tells)]


def _found(name: str) -> list[str]:
    """The logs that ``name`` stands for: a file, those in a folder, or those that a pattern names."""
    if os.path.isdir(name):
        paths = [os.path.join(root, file) for root, _, files in os.walk(name) for file in files]
        if logs := [path for path in paths if _LOG.search(path)]:
            return logs
        raise FileNotFoundError(2, f"no file in it ends in {', '.join(LOGS)}", name)
    if not os.path.exists(name) and (paths := glob.glob(name, recursive=True)):
        return [path for path in paths if os.path.isfile(path)]
    os.stat(name)
    return [name]


def _holds_logs(name: str) -> bool:
    """Whether a log lies there; an id in capitals, as it is printed, is the failure all the same."""
    try:
        return not name.isupper() and bool(_found(name))
    except OSError:
        return False


def _of_file(path: str, catalog: Catalog, say: Words) -> Answer:
    with open(path, "rb") as handle:
        return answer(handle, catalog, say, _progress(handle))


def _tells(given: Answer) -> int:
    hit = given.diagnosis.hit
    if hit is None:
        return 1 if given.diagnosis.first else 9
    kinds = {"error": 0, "echo": 2, "hint": 4, "told": 6}  # one that is `perhaps` only is no hit
    return kinds[hit.symptom.kind] + hit.failure.foreign


def _progress(handle: BinaryIO) -> Callable[[int], None] | None:
    size = os.fstat(handle.fileno()).st_size
    if size < LARGE or not sys.stderr.isatty():
        return None

    def tell(done: int) -> None:
        if done >= size:
            print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)
        elif done % (16 << 20) == 0:
            print(f"\r{100 * done // size} % of {size >> 20} MB", end="", file=sys.stderr, flush=True)

    return tell
