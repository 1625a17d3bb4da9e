"""What is known by a name: the pages of a patch, a failure, one of doctor's codes; and the same as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from vlmpatch.catalog.location import patch_path
from vlmpatch.catalog.model import Catalog, Entry
from vlmpatch.tools import codes
from vlmpatch.tools.codes import Code
from vlmpatch.tools.explain import failures, stories
from vlmpatch.tools.explain.failures import Failure
from vlmpatch.tools.view.language import Words
from vlmpatch.tools.view.page import Page

SCHEMA = 1  # of --json
Known: TypeAlias = Entry | Failure | Code


def called(name: str, catalog: Catalog) -> Known | None:
    """The patch, by its id or a former one, failure or code of that name."""
    known = failures.every(catalog)
    return (
        catalog.entries.get(catalog.renamed.get(name, name))
        or known.called(name)
        or codes.read().get(name.upper())
    )


def page(known: Known, catalog: Catalog, say: Words) -> Page:
    """Its page."""
    if isinstance(known, Entry):
        return patch_page(known, catalog, say)
    return failure_page(known, catalog, say) if isinstance(known, Failure) else code_page(known, say)


def data(known: Known, catalog: Catalog, say: Words) -> dict[str, Any]:
    """The same for ``--json``."""
    if isinstance(known, Entry):
        return {"schema": SCHEMA, "about": "patch", **_patch(known, catalog, say)}
    if isinstance(known, Failure):
        return {"schema": SCHEMA, "about": "failure", **_failure(known, catalog, say)}
    return {
        "schema": SCHEMA,
        "about": "code",
        "id": known.id,
        "title": say.pick(known.title),
        "cause": say.pick(known.cause),
        "do": say.pick(known.remedy),
        "failures": list(known.failures),
    }


def _failure(failure: Failure, catalog: Catalog, say: Words) -> dict[str, Any]:
    return {
        "id": failure.id,
        "title": say.pick(failure.title),
        "where": say.pick(failure.where),
        "cause": say.pick(failure.cause),
        "patches": [entry.id for entry in failure.patches(catalog)],
        "do": _advice(failure, catalog, say),
    }


def _advice(failure: Failure, catalog: Catalog, say: Words) -> list[str]:
    """The lines to add or change: ours, where patches end it, before those that help without them."""
    lines = list(failure.advice[say.language == "zh"])
    ours = "import vlmpatch"
    if not failure.patches(catalog) or any(line.startswith(ours) for line in lines):
        return lines
    return [f"{ours}  # {say('first line of the script')}", *lines]


def _patch(entry: Entry, catalog: Catalog, say: Words) -> dict[str, Any]:
    path = _file(entry, catalog)
    return {
        "id": entry.id,
        "set": entry.set or None,
        "summary": say.pick((entry.summary, entry.summary_zh)),
        "description": stories.told(Path(path), say.language).text,
        "failures": list(entry.failures),
        "severity": entry.severity,
        "targets": list(entry.targets),
        "requires": dict(entry.requires),
        "source": path,
        "upstream": list(entry.upstream),
    }


def _file(entry: Entry, catalog: Catalog) -> str:
    return patch_path(catalog.patches_of(entry), entry.module)


def failure_page(failure: Failure, catalog: Catalog, say: Words) -> Page:
    """All about one failure."""
    made = Page()
    made.add(f"{failure.id} · {say.pick(failure.title)}", "head")
    made.add()
    if failure.where[0]:
        made.add(say.pick(failure.where), label=say("Where"))
    made.add(say.pick(failure.cause), label=say("Why"))
    label = say("Fixed by")
    ending = failure.patches(catalog)
    for entry in ending:
        made.add(f"{entry.id}{say.mark(': ')}{say.pick((entry.summary, entry.summary_zh))}", label=label)
        label = " "
    if not ending and not failure.foreign:
        made.add(say("no patch yet; this helps:"), label=label)
    for number, line in enumerate(_advice(failure, catalog, say)):
        made.code(line, say("Do this") if number == 0 else say("or"))
    return made


def code_page(code: Code, say: Words) -> Page:
    """What one of doctor's codes means."""
    made = Page()
    made.add(f"{code.id} · {say.pick(code.title)}", "head")
    made.add()
    made.add(say.pick(code.cause), label=say("Why"))
    made.add(say.pick(code.remedy), label=say("Do this"))
    for number, failure in enumerate(code.failures):
        made.code(f"python -m vlmpatch explain {failure}", say("More") if number == 0 else " ")
    return made


def patch_page(entry: Entry, catalog: Catalog, say: Words) -> Page:
    """The page of one patch: its summary, then what its file says of itself."""
    path = _file(entry, catalog)
    made = Page()
    made.add(entry.id, "head")
    made.add(say.pick((entry.summary, entry.summary_zh)))
    if entry.set:
        made.add(say("Not vlmpatch's own: of the patch set {set}.", set=catalog.sets[entry.set]), "warn")
    made.add()
    story = stories.told(Path(path), say.language)
    if not story.translated:
        made.add(say("What its file says of itself, in English:"), "dim")
    for paragraph in story.text.strip().split("\n\n"):
        made.add(" ".join(paragraph.split()))
        made.add()
    made.add(say(entry.severity), label=say("Severity"))
    needs = ", ".join(f"{name} {specifier}" for name, specifier in entry.requires.items())
    made.add(needs, label=say("Needs"))
    made.code(f"VLMPATCH_DISABLE={entry.id}", say("Switch off"))
    made.code(path, say("Source"))
    for link in entry.upstream:
        made.code(link, say("More"))
    return made
