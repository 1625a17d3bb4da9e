"""``cases/``, a file an upstream: runs that show a failure, and how each ends without the patch it is about.

``verify`` tries some of them on the user's machine. The project's own tests try the rest: every case on every
stack (``tests.matrix``), and on one that it names the case which a patch alone decides (``tests.e2e.alone``).
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vlmpatch.catalog.model import Catalog, PatchSet, Problem
from vlmpatch.tools.lab import Cell

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# The key of a case that says what runs holds the fields of a cell (one of the "field" measures itself), or
# what is said to a program, or the name of what a module of the tests performs.
CELLS = ("cell", "field")
SETTINGS = ("script", "gathers")
SCENARIOS = ("outside", "mixed", "mishap", "trainer", "adapters", "swift")
RUNS = (*CELLS, *SETTINGS, *SCENARIOS)
IN_MATRIX = (*CELLS, "script")
ENDINGS = ("error", "missing", "difference", "ranks")
LAST = 100_000
_ID = r"[a-z0-9]+(-[a-z0-9]+)*"


@dataclass(frozen=True)
class Case:
    """One failure in one situation; the fields are the keys of ``cases/``, but those of the run.

    ``how`` is the key that says what runs: ``cell`` is trained by ``vlmpatch_lab.run``; ``settings`` are
    those of MiniCPM-V's fine-tune script, or of a run that counts gathers; ``scenario`` is a name that a
    test module knows. A script stumbles over a dozen drifts, one after the other: its bare run has every
    patch but the case's.

    ``fails`` is how the bare run fails: ``error: <regex>``, ``missing`` (trainable tensors without
    gradient), ``difference`` (gradients unlike those without checkpointing) or ``ranks`` (gradients
    differ between ranks). On the stacks of the matrix it must fail so exactly where the gate of ``patch``
    is open, or, with ``where``, where those versions are installed: a patch that is harmless where it is
    not needed may have the wider gate. With ``warns`` the failure is the user's own choice, which is
    overruled: that text must have been printed. ``only`` is where the case can run, beside
    the stacks that pin no ``framework`` or the one it names. ``without`` are patches switched off in the
    run with vlmpatch, for they would hide what ``patch`` fixes. ``order`` is its place on the
    compatibility page.

    ``proof`` names the stacks on which the case proves that ``patch`` is needed: right with every patch,
    and not without this one; ``slow`` adds stacks for the broad sweeps. ``hidden_by`` are patches that
    end the same failure there, off in both runs. ``lacking`` and ``ends`` are for what ends otherwise
    than ``fails`` says without the patch alone, and otherwise than right with every patch. With ``says``,
    the patch warns once of what a script should say today.
    """

    id: str
    upstream: str = ""  # the file it stands in
    order: int = LAST
    failures: tuple[str, ...] = ()
    patch: str = ""
    framework: str = ""
    how: str = "cell"
    cell: Cell = field(default_factory=Cell)
    settings: Mapping[str, Any] = field(default_factory=dict)
    scenario: str = ""
    fails: str = ""
    warns: str = ""
    where: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    matrix: bool = True  # whether it is tried on every stack that can run it
    proof: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    hidden_by: tuple[str, ...] = ()
    lacking: str = ""
    ends: str = ""
    says: bool = False
    en: str = ""
    zh: str = ""

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def untranslated(self) -> bool:
        """Whether its Chinese is English still."""
        return self.zh == self.en != ""


@dataclass(frozen=True)
class Cases:
    """All cases that are soundly written, by id and in their order, and the problems of the others."""

    known: dict[str, Case]
    problems: tuple[Problem, ...]


class _Invalid(Exception):
    def __init__(self, key: str, what: str, remedy: str) -> None:
        super().__init__(what)
        self.key, self.what, self.remedy = key, what, remedy


def read(catalog: Catalog) -> Cases:
    """The cases that lie beside the catalog; never raises for what a file holds or lacks."""
    folder = os.path.join(os.path.dirname(catalog.path), "cases")
    found: dict[str, Case] = {}
    problems: list[Problem] = []
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".toml"))
    except OSError as error:
        return Cases({}, (Problem(folder, f"cannot be read ({error.strerror})", "Reinstall vlmpatch"),))
    for name in names:
        path = os.path.join(folder, name)
        try:
            with open(path, "rb") as handle:
                data = tomllib.load(handle)
        except (OSError, ValueError) as error:
            problems.append(Problem(path, f"cannot be read: {error}", "Fix that line or reinstall vlmpatch"))
            continue
        for case in parse(data, path, catalog, problems):
            if case.id in found:
                where = f"{path}, case {case.id!r}, id"
                problems.append(Problem(where, "appears twice", "Give each case its own id"))
            found.setdefault(case.id, case)
    ordered = sorted(found.values(), key=lambda case: case.order)
    return Cases({case.id: case for case in ordered}, tuple(problems))


def every(catalog: Catalog) -> Cases:
    """Ours, and those of the patch sets of others, under ids that begin with the set's name."""
    found = [read(catalog), *(of_set(each, catalog) for each in catalog.sets.values())]
    known = {id_: case for each in found for id_, case in each.known.items()}
    return Cases(known, tuple(problem for each in found for problem in each.problems))


def of_set(patch_set: PatchSet, catalog: Catalog) -> Cases:
    """Those of one patch set, which need have none; ``catalog`` has its patches."""
    if not os.path.isdir(os.path.join(os.path.dirname(patch_set.path), "cases")):
        return Cases({}, ())
    bare = {
        entry.id.rpartition("/")[2]: entry
        for entry in catalog.entries.values()
        if entry.set == patch_set.name
    }
    found = read(catalog._replace(path=patch_set.path, entries={**catalog.entries, **bare}))
    known = [
        dataclasses.replace(
            case,
            id=f"{patch_set.name}/{case.id}",
            patch=f"{patch_set.name}/{case.patch}" if case.patch in bare else case.patch,
        )
        for case in found.known.values()
    ]
    return Cases({case.id: case for case in known}, found.problems)


def parse(data: Mapping[str, Any], path: str, catalog: Catalog, problems: list[Problem]) -> list[Case]:
    """The sound cases of one file.

    Args:
        data: the parsed TOML.
        path: the file; its stem is the cases' upstream.
        catalog: the patches that cases may name.
        problems: what is wrong with the others is added here.
    """
    upstream = os.path.basename(path).removesuffix(".toml")
    for key in sorted(data.keys() - {"case"}):
        problems.append(Problem(f"{path}, {key}", "unknown key", "Remove it; a file holds [[case]] alone"))
    tables = data.get("case", [])
    if not isinstance(tables, list):
        problems.append(Problem(f"{path}, case", "is not a list of tables", "Write each as [[case]]"))
        return []
    found = []
    for number, table in enumerate(tables, 1):
        name = table.get("id") if isinstance(table, dict) else None
        where = f"{path}, case {name!r}" if isinstance(name, str) else f"{path}, case number {number}"
        try:
            found.append(_case(table, upstream, catalog))
        except _Invalid as error:
            problems.append(Problem(f"{where}, {error.key}", error.what, error.remedy))
    return found


_TEXTS = ("id", "patch", "framework", "fails", "warns", "lacking", "ends", "en", "zh")
_LISTS = ("failures", "without", "proof", "slow", "hidden_by")
_RANGES = ("where", "only")
_FLAGS = ("matrix", "says")
_KEYS = (*_TEXTS, *_LISTS, *_RANGES, *_FLAGS, "order", *RUNS)


def _case(table: object, upstream: str, catalog: Catalog) -> Case:
    if not isinstance(table, dict):
        raise _Invalid("case", "is not a table", "Write each as [[case]]")
    if unknown := table.keys() - set(_KEYS):
        raise _Invalid(min(unknown), "unknown key", f"Known keys: {', '.join(_KEYS)}")
    given: dict[str, Any] = {"upstream": upstream, "order": _order(table), **_run(table)}
    given |= {name: _text(table, name) for name in _TEXTS}
    given |= {name: _strings(table, name) for name in _LISTS}
    given |= {name: _ranges(table, name) for name in _RANGES}
    given |= {"matrix": _flag(table, "matrix", given["how"] in IN_MATRIX), "says": _flag(table, "says")}
    given["zh"] = given["zh"] or given["en"]
    entry = catalog.entries.get(given["patch"])
    if entry and "failures" not in table:
        given["failures"] = entry.failures
    case = Case(**given)
    _check(case, catalog)
    return case


def _run(table: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a case that say what runs."""
    said = [name for name in RUNS if name in table]
    if len(said) != 1:
        what = f"{', '.join(said)} are given together" if said else "nothing says what runs"
        raise _Invalid(said[0] if said else "cell", what, f"Give one of: {', '.join(RUNS)}")
    (how,) = said
    value = table[how]
    if how in SCENARIOS:
        if not _text(table, how):
            raise _Invalid(how, "is empty", "Name what the test module performs")
        return {"how": how, "scenario": value}
    if not isinstance(value, dict):
        raise _Invalid(how, "is not a table", f"Write {how} = {{ … }}")
    return {"how": how, "cell": _cell(value, how)} if how in CELLS else {"how": how, "settings": value}


def _cell(values: Mapping[str, Any], how: str) -> Cell:
    known = dataclasses.asdict(Cell())
    for name, value in values.items():
        if name not in known:
            raise _Invalid(f"{how}.{name}", "is no field of a cell", f"Known: {', '.join(known)}")
        if type(value) is not type(known[name]):
            kind = type(known[name]).__name__
            raise _Invalid(f"{how}.{name}", f"is {type(value).__name__}, not {kind}", f"Write a {kind}")
    try:
        return Cell(**values)
    except ValueError as error:
        raise _Invalid(how, str(error), "vlmpatch_lab/cell.py describes the fields") from None


def _check(case: Case, catalog: Catalog) -> None:
    if not re.fullmatch(_ID, case.id):
        raise _Invalid("id", f"{case.id!r} is not in kebab-case", "Use a-z, 0-9 and single hyphens")
    named = {
        "patch": [case.patch] if case.patch else [],
        "without": case.without,
        "hidden_by": case.hidden_by,
    }
    for key, patches in named.items():
        if unknown := [name for name in patches if name not in catalog.entries]:
            raise _Invalid(key, f"there is no patch {unknown[0]!r}", "Write its id as in compat.toml")
    if bool(case.patch) != bool(case.fails):
        key = "fails" if case.patch else "patch"
        raise _Invalid(key, "is missing", "A case of a patch says how the run fails without it")
    for key in ("fails", "lacking", "ends"):
        _check_ending(key, getattr(case, key))
    if case.matrix and case.how not in IN_MATRIX:
        raise _Invalid("matrix", f"is true, and the matrix runs no {case.how}", "Leave it out")
    if case.matrix and not case.en:
        raise _Invalid("en", "is missing", "Say in a line what is trained, for the compatibility page")
    if not case.matrix and not case.proof:
        raise _Invalid("proof", "is missing", "What is not in the matrix names the stacks it is a proof on")
    for key in ("lacking", "ends", "hidden_by", "slow", "says"):
        if getattr(case, key) and not case.proof:
            raise _Invalid(key, "is for a proof", "Name the stacks of the proof, or leave it out")
    if not case.patch and (case.proof or case.how == "script"):
        raise _Invalid("patch", "is missing", "Name the patch that decides how the run ends")


def _check_ending(key: str, ending: str) -> None:
    kind, _, pattern = ending.partition(": ")
    if ending and kind not in ENDINGS:
        raise _Invalid(key, f"{kind!r} is no ending", f"One of: {', '.join(ENDINGS)}; after `: ` a regex")
    try:
        re.compile(pattern)
    except re.error as error:
        raise _Invalid(key, f"is no regular expression: {error}", "Escape what is meant literally") from None


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise _Invalid(key, f"is {type(value).__name__}, not a string", 'Write it in quotes: "…"')
    return value


def _strings(table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _Invalid(key, "is not a list of strings", 'Write ["…", "…"]')
    return tuple(value)


def _ranges(table: Mapping[str, Any], key: str) -> dict[str, str]:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    value = table.get(key, {})
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise _Invalid(key, "is not a table of strings", 'Write { package = ">=1,<2" }')
    for name, text in value.items():
        try:
            SpecifierSet(text)
        except InvalidSpecifier:
            raise _Invalid(f"{key}.{name}", f"{text!r} is no range of versions", 'Write ">=1,<2"') from None
    return value


def _flag(table: Mapping[str, Any], key: str, default: bool = False) -> bool:
    value = table.get(key, default)
    if not isinstance(value, bool):
        raise _Invalid(key, f"is {type(value).__name__}, not a boolean", "Write true or false")
    return value


def _order(table: Mapping[str, Any]) -> int:
    value = table.get("order", LAST)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _Invalid("order", "is no number", "Those with a smaller one come first")
    return value
