"""A lock: what vlmpatch applies on one stack, a TOML file with a line a fact."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from vlmpatch.support import files

SCHEMA = 1
FILE = "vlmpatch.lock"
LARGEST = 4 << 20  # bytes
# In place of a shape:
ABSENT = "absent"  # the target could not be imported where the lock was made
ANY = "any"  # a pattern, for the code of models: decided when one is loaded
_REVISION = r"[0-9a-f]{12}"
_SHAPE = rf"{_REVISION}|{ABSENT}|{ANY}"
_HEAD = "# What vlmpatch applies on this stack: `python -m vlmpatch lock` writes it, `lock --diff` compares."
_AGAIN = "Write it again: python -m vlmpatch lock"


class Locked(NamedTuple):
    """One patch: what it is made of, and of each of its targets the shape that it looks at."""

    id: str
    revision: str
    shapes: Mapping[str, str]

    @property
    def waits(self) -> bool:
        """Whether it acts only where a script brings a module that was not here."""
        return set(self.shapes.values()) == {ABSENT}


class Lock(NamedTuple):
    """The version of vlmpatch, those of the packages that its gates ask about, and what applies.

    ``sets`` are the patch sets of others that were switched on: the distribution of each, and its version.
    """

    vlmpatch: str
    packages: Mapping[str, str]
    patches: Mapping[str, Locked]
    sets: Mapping[str, str] = MappingProxyType({})


class Unreadable(Exception):
    """A lock that cannot be used; the text names the file, the key and what to do.

    Args:
        where: the file and the key.
        what: is wrong there.
        remedy: what to do, in one sentence or two.
    """

    def __init__(self, where: str, what: str, remedy: str = _AGAIN) -> None:
        super().__init__(f"{where}: {what}. {remedy}")
        self.where, self.what, self.remedy = where, what, remedy


def read(path: str) -> Lock:
    """The lock at ``path``.

    Raises:
        Unreadable: it is not there, or not a lock of this schema.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return parse(tomllib.loads(files.read(path, LARGEST)), path)
    except OSError as error:
        raise Unreadable(path, f"cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise Unreadable(path, f"is not valid TOML: {error}") from error


def parse(data: Mapping[str, Any], path: str) -> Lock:
    """The lock that ``data`` holds; ``path`` is named in errors.

    Raises:
        Unreadable: something in it is not as ``text`` writes it.
    """
    if "schema" not in data:
        raise Unreadable(f"{path}, schema", "is missing")
    if data["schema"] != SCHEMA:
        what = f"is {data['schema']!r}, and this vlmpatch reads {SCHEMA}"
        raise Unreadable(f"{path}, schema", what, f"Install the vlmpatch that wrote it. {_AGAIN}")
    _known(data, {"schema", "vlmpatch", "packages", "sets", "patch"}, path)
    patches = data.get("patch", [])
    if not isinstance(patches, list):
        raise Unreadable(f"{path}, patch", "is not a list of tables")
    locked: dict[str, Locked] = {}
    for number, table in enumerate(patches, 1):
        each = _locked(table, f"{path}, patch number {number}")
        if each.id in locked:
            raise Unreadable(f"{path}, patch {each.id!r}", "appears twice")
        locked[each.id] = each
    version = _string(data, "vlmpatch", r"\S{1,80}", path)
    sets = _strings(data, "sets", r"\S{1,80} \S{1,80}", path) if "sets" in data else {}
    return Lock(version, _strings(data, "packages", r"\S{1,80}", path), locked, sets)


def _locked(table: object, where: str) -> Locked:
    if not isinstance(table, dict):
        raise Unreadable(where, "is not a table")
    _known(table, {*Locked._fields}, where)
    id_ = _string(table, "id", r"[a-z0-9/-]{1,200}", where)
    where = f"{where} ({id_})"
    revision = _string(table, "revision", _REVISION, where)
    return Locked(id_, revision, _strings(table, "shapes", _SHAPE, where))


def _known(table: Mapping[str, Any], keys: set[str], where: str) -> None:
    if unknown := table.keys() - keys:
        raise Unreadable(f"{where}, {min(unknown)}", f"unknown key; known: {', '.join(sorted(keys))}")


def _string(table: Mapping[str, Any], key: str, form: str, where: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not re.fullmatch(form, value):
        what = "is missing" if value is None else f"cannot be {value!r}"
        raise Unreadable(f"{where}, {key}", what)
    return value


def _strings(table: Mapping[str, Any], key: str, form: str, where: str) -> dict[str, str]:
    value = table.get(key)
    if not isinstance(value, dict):
        raise Unreadable(f"{where}, {key}", "is missing" if value is None else "is not a table")
    return {name: _string(value, name, form, f"{where}, {key}") for name in value}


def text(lock: Lock) -> str:
    """``lock`` as a file; equal locks are equal texts."""
    lines = [_HEAD, f"schema = {SCHEMA}", f"vlmpatch = {_quoted(lock.vlmpatch)}", "", "[packages]"]
    lines += _pairs(lock.packages)
    if lock.sets:
        lines += ["", "# Not vlmpatch's own: patch sets of others.", "[sets]", *_pairs(lock.sets)]
    for _, each in sorted(lock.patches.items()):
        shapes = ", ".join(_pairs(each.shapes, bare=False))
        lines += ["", "[[patch]]", f"id = {_quoted(each.id)}", f"revision = {_quoted(each.revision)}"]
        lines.append(f"shapes = {{ {shapes} }}")
    return "\n".join(lines) + "\n"


def _pairs(table: Mapping[str, str], bare: bool = True) -> list[str]:
    """A line a key; ``bare`` ones are left without quotes where TOML takes them so."""
    plain = re.compile(r"[A-Za-z0-9_-]+" if bare else r"(?!)")
    named = {name: name if plain.fullmatch(name) else _quoted(name) for name in sorted(table)}
    return [f"{named[name]} = {_quoted(table[name])}" for name in named]


def _quoted(text: str) -> str:
    """A basic string of TOML, whose escapes are those of JSON, but for one sign that JSON leaves alone."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
