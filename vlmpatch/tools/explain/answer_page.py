"""The answer to a log: a page for a person, and the same as data."""

from __future__ import annotations

from typing import Any

from vlmpatch.tools.explain import failures, stages
from vlmpatch.tools.explain.answers import Answer, Applies
from vlmpatch.tools.explain.diagnose import WATCHED, Diagnosis, printable, shown
from vlmpatch.tools.explain.pages import SCHEMA
from vlmpatch.tools.explain.symptoms import squeeze
from vlmpatch.tools.view.language import Words
from vlmpatch.tools.view.page import Page

SHOWN = 4  # of what vlmpatch itself said


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
_BEHEADED = "The log begins in the middle of it; what was printed before would tell."
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
_GROUNDED = "The message is not known here; its kind, or the part of the program it ends in, says this much:"
_MAYBE = "Perhaps a failure that vlmpatch knows: the log does not say enough to be certain."


def _why(found: Diagnosis) -> str:
    """Why it is no more than perhaps."""
    return _DESCRIBED if found.described else _BEHEADED if found.beheaded else _MESSAGE_ONLY


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
    if stage := _stage(given):
        made.add(say.pick(stage.words), label=say("It ended"))
        if not (given.diagnosis.perhaps or given.diagnosis.ground):
            made.add("\t" + say.pick(stage.look))
    for number, perhaps in enumerate(given.diagnosis.perhaps):
        made.add(f"{perhaps.id} · {say.pick(perhaps.title)}", label=" " if number else say("Perhaps"))
    if first.cut:
        made.code("tail -n 100 train.log | python -m vlmpatch explain -", say("Do this"))
    elif given.diagnosis.perhaps:
        made.add("\t" + say(_why(given.diagnosis)))
    for number, perhaps in enumerate(given.diagnosis.perhaps):
        made.code(f"python -m vlmpatch explain {perhaps.id}", " " if number else say("More"))
    if hit and hit.symptom.kind == "told":
        made.add("\t" + say(_DESCRIBED))
    if given.diagnosis.ground:
        made.add("\t" + say(_GROUNDED))
    if other := _other(given):
        made.add(say.pick(other.title), label=say("Why"))
        made.add("\t" + say.pick(other.cause))
        for number, line in enumerate(_advice(given, say)):
            made.code(line, say("Do this") if number == 0 else say("or"))


def _other(given: Answer) -> failures.Failure | None:
    """The cause that is none of ours: one that shows, or what the kind of an unknown error says."""
    hit = given.diagnosis.hit
    return hit.failure if hit and hit.failure.foreign else given.diagnosis.ground


def _stage(given: Answer) -> stages.Stage | None:
    """What the program was doing, where that is not known from the cause."""
    first = given.diagnosis.first
    traced = first is not None and (first.error or first.cut) and given.diagnosis.hit is None
    return stages.of(first.text, first.cut) if first is not None and traced else None


def _headline(given: Answer) -> str:
    first = given.diagnosis.first
    if given.diagnosis.hit:
        return "What it shows instead:"
    if first and first.cut:
        return _CUT
    return "The first uncaught error in it:" if first and first.error else "A line that could be one:"


def data(given: Answer, say: Words) -> dict[str, Any]:
    """The answer for ``--json``."""
    hit, first = given.ours, given.diagnosis.first
    foreign = given.diagnosis.hit if hit is None else None
    stage = _stage(given)
    return {
        "schema": SCHEMA,
        "about": "log",
        "failure": hit.failure.id if hit else None,
        "title": say.pick(hit.failure.title) if hit else None,
        "cause": say.pick(given.why) if hit else None,
        "kind": hit.symptom.kind if hit else None,
        "instead": foreign.failure.id if foreign else None,
        "ground": given.diagnosis.ground.id if given.diagnosis.ground else None,
        "perhaps": given.diagnosis.perhaps[0].id if given.diagnosis.perhaps else None,
        "stage": stage.id if stage else None,
        "cut": first is not None and first.cut,
        "not_text": given.instead or None,
        "seen": _seen(given) if first else None,
        "line": first.at if first else None,
        "file": given.file or None,
        "ranks": list(given.diagnosis.ranks),
        "versions": given.diagnosis.versions,
        "active": given.diagnosis.active,
        "patches": [each._asdict() for each in given.patches],
        "do": _advice(given, say) if hit or _other(given) else [],
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
    hit = given.diagnosis.hit
    about = hit.failure if hit else given.diagnosis.ground
    assert about is not None
    lines = list(about.advice[say.language == "zh"])
    if given.diagnosis.active or not any(each.verdict != "not here" for each in given.patches):
        return lines
    return [
        f"import vlmpatch  # {say('first line of the script')}",
        f"python -m vlmpatch run {say('your command')} …",
    ]
