"""``python -m vlmpatch new ID``: lay out a patch in a package of one's own, and the package with the first.

What is written is a patch set: vlmpatch's own form in a package with an entry point, switched on by name.
What is to be filled in is marked; the tests that come with it fail until nothing is.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from vlmpatch import __version__
from vlmpatch.catalog import sets
from vlmpatch.catalog.location import patch_modules
from vlmpatch.catalog.model import Catalog
from vlmpatch.catalog.read import read
from vlmpatch.gate.verdict import ranges
from vlmpatch.tools import cases
from vlmpatch.tools.explain import failures
from vlmpatch.tools.templates import CASE, ENTRY, FAILURE, PATCH
from vlmpatch.tools.view.language import Words

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BLANK = "FILL IN"
_ID = r"[a-z][a-z0-9]*(-[a-z0-9]+)*"
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}-patches"
version = "0.1.0"
description = "Patches of {name}, for vlmpatch"
requires-python = ">=3.10"
dependencies = ["vlmpatch>={version}"]

[project.entry-points."vlmpatch.patch_sets"]
{name} = "{package}"

[tool.hatch.build.targets.wheel]
packages = ["{package}"]
"""
CATALOG = """\
# The patches of {name}; the keys are those of vlmpatch's compat.toml.

schema = 1
"""
MODULES = """\

# Import names of distributions that are imported under another name.
modules = {{ {distribution} = "{upstream}" }}
"""
SOUND = '''\
"""The set is whole: every file in its form, nothing left to fill in, no patch that vlmpatch has."""

from vlmpatch.tools.new import lacks


def test_nothing_is_missing() -> None:
    missing = lacks("{name}")
    assert not missing, "\\n".join(missing)
'''
TEST = '''\
"""{id}: wrong without it, right with it, and as before when it is taken back."""

import importlib

import vlmpatch

ID = "{name}/{id}"
TARGET = "FILL IN: the module that is fixed"


def right() -> bool:
    """FILL IN: call what is fixed, and say whether it does what it should."""
    return bool(importlib.import_module(TARGET))


def test_it_decides() -> None:
    vlmpatch.use("{name}")
    assert right()
    status = vlmpatch.status()[ID]
    assert status.state is vlmpatch.State.APPLIED, status.reason
    with vlmpatch.disabled(ID):
        assert not right()
    assert right()
    assert vlmpatch.undo(ID) == []
    assert not right()
'''


class Refused(Exception):
    """What is asked for cannot be laid out, and why."""


def new(asked: argparse.Namespace, say: Words) -> int:
    """Lay it out in the current folder; say what was written.

    Returns:
        0; 2 where it cannot be laid out.
    """
    root = Path.cwd()
    try:
        written = lay_out(root, asked.id, asked.upstream, asked.set or "", asked.failure)
    except Refused as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    print(say("Written; what is marked FILL IN says what belongs in its place:"))
    for path in written:
        print(f"  {path.relative_to(root)}")
    print(say("Then: pip install --editable . && python -m pytest tests"))
    return 0


def lay_out(root: Path, id_: str, upstream: str, name: str, failure: str) -> list[Path]:
    """Write everything that a new patch of a patch set consists of.

    Args:
        root: the folder of the set, with a ``pyproject.toml`` or empty.
        id_: the patch's.
        upstream: the folder of ``patches/`` it belongs to: what it fixes.
        name: the set's, where ``pyproject.toml`` does not say it yet.
        failure: one of vlmpatch's (``F4``) or of the set's that it ends, or ``new``.

    Returns:
        The files written or added to.

    Raises:
        Refused: a name is bad or taken, or there is a project here that is no patch set.
        OSError: something cannot be written.
    """
    for word, form, example in ((id_, _ID, "rope-cache"), (upstream, r"[a-z][a-z0-9_]*", "acme_model")):
        if not re.fullmatch(form, word):
            raise Refused(f"{word!r} is no such name; write it as {example}")
    name, package, made = _package(root, name)
    home = root / package
    catalog = read(str(home / "compat.toml")) if (home / "compat.toml").exists() else None
    taken = patch_modules(str(home / "patches")).get(id_)
    ours = sets.known({}).entries
    if taken or id_ in ours:
        whose = (
            f"{package}/patches/{taken[0].replace('.', '/')}.py" if taken else "vlmpatch has a patch of it"
        )
        raise Refused(f"{id_} is taken: {whose}")
    given = {"id": id_, "upstream": upstream, "distribution": upstream.replace("_", "-"), "name": name}
    failure, own = _failure(home, failure)
    earlier = Path(catalog.path).read_text("utf-8") if catalog else CATALOG.format(**given)
    if not catalog and upstream != given["distribution"]:
        earlier += MODULES.format(**given)
    shown = home / "cases" / f"{upstream}.toml"
    shown_before = [shown.read_text("utf-8")] if shown.exists() else []
    made |= _inits(home, name, upstream) | own
    made |= {
        home / "compat.toml": f"{earlier.rstrip()}\n\n{ENTRY.format(**given, failure=failure)}",
        home / "patches" / upstream / f"{id_.replace('-', '_')}.py": PATCH,
        shown: "\n".join([*shown_before, _commented(CASE, given)]),
        root / "tests" / "test_sound.py": SOUND.format(**given),
        root / "tests" / f"test_{id_.replace('-', '_')}.py": TEST.format(**given),
    }
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return list(made)


def _inits(home: Path, name: str, upstream: str) -> dict[Path, str]:
    """What makes packages of the folders that are new."""
    words = {
        home: f"Patches of {name}, for vlmpatch.",
        home / "patches": "One folder a project, one file a patch.",
        home / "patches" / upstream: f"Patches for {upstream}.",
    }
    new = [folder for folder in words if not (folder / "__init__.py").exists()]
    return {folder / "__init__.py": f'"""{words[folder]}"""\n' for folder in new}


def _package(root: Path, name: str) -> tuple[str, str, dict[Path, str]]:
    """The set in ``root`` and its package, or what makes one called ``name``."""
    project = root / "pyproject.toml"
    if (root / "compat.toml").exists() and (root / "patches").is_dir():
        raise Refused("this is vlmpatch's own repository: python -m tests.new UPSTREAM ID --failure F4")
    if project.exists():
        try:
            data = tomllib.loads(project.read_text("utf-8"))
            points = dict(data.get("project", {}).get("entry-points", {}).get(sets.GROUP, {}))
        except (ValueError, AttributeError, TypeError) as error:
            raise Refused(f"{project}: {error}") from error
        if len(points) != 1 or (name and name not in points):
            wanted = f'[project.entry-points."{sets.GROUP}"] with {name or "NAME"} = "PACKAGE"'
            raise Refused(f"{project}, project.entry-points: names no such patch set; write {wanted}")
        ((name, package),) = points.items()
        return name, str(package).replace(".", "/"), {}
    name = name or root.resolve().name
    if not re.fullmatch(_ID, name):
        raise Refused(f"{name!r} is no name for a patch set; --set acme-vl gives it one")
    package = f"{name.replace('-', '_')}_patches"
    return name, package, {project: PYPROJECT.format(name=name, package=package, version=__version__)}


def _failure(home: Path, failure: str) -> tuple[str, dict[Path, str]]:
    """The id of the failure that is ended, and the file of one that is new."""
    own = sorted(path.stem for path in (home / "failures").glob("F*.toml"))
    if failure == "new":
        number = max((int(stem[1:]) for stem in own if stem[1:].isdecimal()), default=0) + 1
        text = FAILURE.format(failure=f"F{number}", order=10 * number)
        return f"F{number}", {home / "failures" / f"F{number:02}.toml": text}
    known = failures.read(sets.known({}).path).called(failure)
    if known is None and re.sub(r"^F(\d)$", r"F0\1", failure.upper()) not in own:
        raise Refused(f"there is no failure {failure}; write one that `explain` names, or: new")
    return known.id if known else failure.upper(), {}


def _commented(template: str, given: dict[str, str]) -> str:
    """A case, which a set may have for ``verify`` and need not."""
    lines = template.format(**given).replace(BLANK, "to fill in").splitlines()
    head = (
        "# A training that shows the bug, for `python -m vlmpatch verify`, in the form of vlmpatch's cases."
    )
    return "\n".join([head, "#", *(f"# {line}".rstrip() for line in lines)]) + "\n"


def lacks(name: str) -> list[str]:
    """What the patch set ``name`` lacks or has wrong, each with its file and key; for its own tests."""
    ours = sets.known({})
    catalog = sets.add(ours, [name], "lacks")
    if name not in catalog.sets:
        return [str(problem) for problem in catalog.problems]
    theirs = {id_: entry for id_, entry in catalog.entries.items() if entry.set == name}
    own = catalog._replace(entries=theirs)
    patch_set = catalog.sets[name]
    described = [*failures.of_set(patch_set).problems, *cases.of_set(patch_set, catalog).problems]
    problems = [*catalog.problems, *described, *ranges(own)]
    folder = Path(patch_set.path).parent
    return [*_blanks(folder), *map(str, problems), *catalog.conflicts.values(), *_unknown(own, ours)]


def _blanks(folder: Path) -> Iterator[str]:
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.toml")]):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if BLANK in line:
                yield f"{os.path.relpath(path, folder.parent)}:{number}: {line.strip()}"


def _unknown(own: Catalog, ours: Catalog) -> Iterator[str]:
    known = {*failures.every(own).known, *failures.every(ours).known}
    for entry in own.entries.values():
        for failure in sorted(set(entry.failures) - known):
            where = f"{own.path_of(entry)}, patch {entry.id!r}, failures"
            remedy = "Describe it in failures/, or name one of vlmpatch's"
            yield f"{where}: there is no failure {failure}. {remedy}"
