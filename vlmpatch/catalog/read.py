"""compat.toml -> typed, validated entries.

A broken entry is left out and reported (file, entry, key, remedy); the others stand.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from vlmpatch.catalog import index
from vlmpatch.catalog.location import patch_modules
from vlmpatch.catalog.model import Catalog, Entry, Problem

SCHEMA = 1
KEYS = frozenset({"schema", "modules", "patch"})
SEVERITIES = ("crash", "hang", "silent", "cost")
# Compiled when a catalog is checked: most processes read one that was.
_ID = r"[a-z0-9]+(-[a-z0-9]+)*"
_TARGET = r"[A-Za-z_]\w*(\.([A-Za-z_]\w*|\*))*"
_WRITTEN = tuple(field for field in Entry._fields if field not in ("module", "set", "package"))
_OPTIONAL = ("before", "summary_zh", "was")  # without its Chinese a summary is English in both languages


class _Invalid(Exception):
    def __init__(self, key: str, what: str, remedy: str) -> None:
        super().__init__(what)
        self.key, self.what, self.remedy = key, what, remedy


def read(path: str) -> Catalog:
    """Read the catalog at ``path``; never raises for what the file holds or lacks."""
    compiled = index.read(path)
    if compiled and compiled["fields"] == Entry._fields:
        entries = {fields[0]: Entry(*fields) for fields in compiled["entries"]}
        return Catalog(path, entries, compiled["modules"], ())
    try:
        with open(path, "rb") as handle:
            source = handle.read()
        data = _toml(source)
    except NotADirectoryError as error:
        problem = Problem(
            path, f"cannot be read ({error.strerror})", "Unpack the archive that vlmpatch lies in"
        )
        return Catalog(path, {}, {}, (problem,))
    except OSError as error:
        problem = Problem(path, f"cannot be read ({error.strerror})", "Reinstall vlmpatch")
        return Catalog(path, {}, {}, (problem,))
    except ValueError as error:
        problem = Problem(path, f"is not valid TOML: {error}", "Fix that line or reinstall vlmpatch")
        return Catalog(path, {}, {}, (problem,))
    stamps = index.stamps(path)  # before the folders are read: what moves later is seen
    catalog = parse(data, path)
    if not catalog.problems:
        made = index.dumps(source, catalog, Entry._fields, stamps)
        index.write(path, made, beside=not sys.dont_write_bytecode)
    return catalog


def _toml(source: bytes) -> dict[str, Any]:
    # Imported here: a process that finds the index needs no parser, and it is a quarter of the wake.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(source.decode())


def parse(data: Mapping[str, Any], path: str) -> Catalog:
    """Validate what ``compat.toml`` holds.

    Args:
        data: the parsed TOML.
        path: named in problems, and where the patch modules are looked for (beside it).
    """
    problems: list[Problem] = []
    entries: dict[str, Entry] = {}
    taken: set[str] = set()
    if data.get("schema") != SCHEMA:
        what = f"schema is {data.get('schema')!r}, this vlmpatch reads schema {SCHEMA}"
        problems.append(Problem(f"{path}, schema", what, "Install the vlmpatch this catalog belongs to"))
        return Catalog(path, {}, {}, tuple(problems))
    for key in data.keys() - KEYS:
        remedy = f"Remove it; known: {', '.join(sorted(KEYS))}"
        problems.append(Problem(f"{path}, {key}", "unknown key", remedy))
    modules = patch_modules(os.path.join(os.path.dirname(path), "patches"))
    raw_entries = data.get("patch", [])
    if not isinstance(raw_entries, list):
        problems.append(Problem(f"{path}, patch", "is not a list of tables", "Write each as [[patch]]"))
        raw_entries = []
    for number, raw in enumerate(raw_entries, 1):
        name = raw.get("id") if isinstance(raw, dict) else None
        where = f"{path}, patch {name!r}" if isinstance(name, str) else f"{path}, patch number {number}"
        try:
            entry = _entry(raw, modules)
            if entry.id in taken:
                raise _Invalid("id", "appears twice", "Give each patch its own id")
            if not taken.isdisjoint(entry.was):
                raise _Invalid("was", "names an id that another has", "An id is never used again")
            entries[entry.id] = entry
            taken.update({entry.id, *entry.was})
        except _Invalid as error:
            problems.append(Problem(f"{where}, {error.key}", error.what, error.remedy))
    return Catalog(path, entries, _modules(data, path, problems), tuple(problems))


def _modules(data: Mapping[str, Any], path: str, problems: list[Problem]) -> dict[str, str]:
    modules = data.get("modules", {})
    if isinstance(modules, dict) and all(isinstance(value, str) for value in modules.values()):
        return modules
    remedy = 'Write modules = { distribution = "import_name" }'
    problems.append(Problem(f"{path}, modules", "is not a table of strings", remedy))
    return {}


def _entry(raw: object, modules: Mapping[str, list[str]]) -> Entry:
    if not isinstance(raw, dict):
        raise _Invalid("patch", "is not a table", "Write each as [[patch]]")
    unknown = raw.keys() - set(_WRITTEN)
    if unknown:
        remedy = f"Known keys: {', '.join(_WRITTEN)}"
        if "symptoms" in unknown:
            remedy = "Write it into the file of failures/ that the patch ends"
        raise _Invalid(min(unknown), "unknown key", remedy)
    missing = [key for key in _WRITTEN if key not in raw and key not in _OPTIONAL]
    if missing:
        raise _Invalid(missing[0], "is missing", "Every entry gives every key; see CONTRIBUTING.md")
    entry = Entry(
        id=_string(raw, "id"),
        module=_module(_string(raw, "id"), modules),
        failures=_strings(raw, "failures"),
        severity=_string(raw, "severity"),
        summary=_string(raw, "summary"),
        summary_zh=_string(raw, "summary_zh" if "summary_zh" in raw else "summary"),
        targets=_strings(raw, "targets"),
        requires=_table(raw["requires"], "requires"),
        upstream=_strings(raw, "upstream"),
        before=_flag(raw, "before"),
        was=_strings(raw, "was") if "was" in raw else (),
    )
    _check(entry)
    return entry


def _module(id_: str, modules: Mapping[str, list[str]]) -> str:
    """Where the file of patch ``id_`` lies; ``modules`` is what lies in ``patches/``."""
    if not re.fullmatch(_ID, id_):
        raise _Invalid("id", f"{id_!r} is not in kebab-case", "Use a-z, 0-9 and single hyphens")
    found = modules.get(id_, [])
    if not found:
        what = f"there is no patches/<upstream>/{id_.replace('-', '_')}.py"
        raise _Invalid("id", what, "Name the file after the patch, or reinstall vlmpatch")
    if len(found) > 1:
        raise _Invalid("id", f"two files are this patch: {', '.join(found)}", "Rename one of them")
    return found[0]


def _check(entry: Entry) -> None:
    if entry.severity not in SEVERITIES:
        raise _Invalid("severity", f"{entry.severity!r} is unknown", f"One of: {', '.join(SEVERITIES)}")
    for key in ("summary", "summary_zh"):
        if not getattr(entry, key).strip():
            raise _Invalid(key, "is empty", "Say in one sentence what the user saw and what is done")
    for key in ("failures", "targets", "upstream"):
        if not getattr(entry, key):
            raise _Invalid(key, "is empty", "Give at least one")
    for target in entry.targets:
        if not re.fullmatch(_TARGET, target):
            raise _Invalid("targets", f"{target!r} is not a module name", "Write it as in an import line")
        if entry.before and "*" in target:
            what = f"does not go with the pattern {target!r}"
            raise _Invalid("before", what, "Name the module, or leave it out")
    for old in entry.was:
        if not re.fullmatch(_ID, old) or old == entry.id:
            raise _Invalid("was", f"{old!r} is no former id", "Write the id that users know it by")
    if not entry.requires:
        raise _Invalid("requires", "is empty", 'Bound the patch: requires = { torch = ">=2.1" }')


def _string(raw: Mapping[str, Any], key: str) -> str:
    value = raw[key]
    if not isinstance(value, str):
        raise _Invalid(key, f"is {type(value).__name__}, not a string", 'Write it in quotes: "…"')
    return value


def _flag(raw: Mapping[str, Any], key: str) -> bool:
    value = raw.get(key, False)
    if not isinstance(value, bool):
        raise _Invalid(key, f"is {type(value).__name__}, not a boolean", "Write true, or leave it out")
    return value


def _strings(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = raw[key]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _Invalid(key, "is not a list of strings", 'Write ["…", "…"]')
    return tuple(value)


def _table(value: object, key: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise _Invalid(key, "is not a table of strings", 'Write { package = "…" }')
    return value
