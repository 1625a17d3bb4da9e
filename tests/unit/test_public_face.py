"""What others may rely on (docs/stability.md), fact by fact: a change of it is seen, and is meant.

``VLMPATCH_GOLDEN=write`` rewrites the file; what it then shows as removed or changed is announced a release
before, what is added goes into the changelog.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vlmpatch
from tests.conftest import World
from vlmpatch import api
from vlmpatch.catalog import environment
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.model import Catalog, State, Status
from vlmpatch.catalog.read import read
from vlmpatch.lockfile import lock as lockfile
from vlmpatch.lockfile.difference import Difference
from vlmpatch.support import log
from vlmpatch.tools import cli, codes, listing, lock, retire
from vlmpatch.tools.doctor import examination, views
from vlmpatch.tools.explain import answer_page, answers
from vlmpatch.tools.view import ci
from vlmpatch.tools.view.language import Words

CHECKOUT = Path(__file__).resolve().parents[2]
FILE = CHECKOUT / "tests" / "golden" / "public-face.txt"
PAGES = ("docs/stability.md", "docs/zh-CN/stability.md")
WRITE = os.environ.get("VLMPATCH_GOLDEN") == "write"
SAY = Words("en")


def functions() -> Iterator[str]:
    for home, names in ((vlmpatch, vlmpatch.__all__), (api, api.__all__)):
        for name in names:
            yield from _face(f"{home.__name__}.{name}", getattr(home, name))
    yield "vlmpatch.tools.watch.WatchCallback (transformers.TrainerCallback)"


def _face(name: str, value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield f"{name}: str"
    elif inspect.isclass(value):
        yield f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"
        for member, inner in sorted(vars(value).items()):
            if not member.startswith("_") and not isinstance(value, type(State)):
                yield from _member(f"{name}.{member}", inner)
    else:
        yield f"{name}{inspect.signature(value)}"  # type: ignore[arg-type]


def _member(name: str, value: object) -> Iterator[str]:
    if inspect.isfunction(value):
        yield f"{name}{inspect.signature(value)}"
    else:  # a property, a field of a named tuple
        yield name


def values() -> Iterator[str]:
    yield from (f"State.{state.name} = {state.value!r}" for state in State)
    yield f"Status: {', '.join(Status._fields)}"
    yield from (f"environment {name}" for name in environment.NAMES)
    yield f"VLMPATCH_LOG takes {', '.join(environment.LEVELS)}"
    yield f"the logger is {log._logger().name}"
    yield from (f"doctor's code {code}" for code in sorted(codes.read()))


def command_line() -> Iterator[str]:
    yield from _options("", cli._parser(SAY))


def _options(verb: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield f"vlmpatch {name}"
                yield from _options(f" {name}", inner)
            continue
        said = "|".join(action.option_strings) or action.dest
        takes = "" if action.nargs is None else f" nargs={action.nargs}"
        among = f" of {', '.join(action.choices)}" if action.choices else ""
        yield f"vlmpatch{verb} {said}{takes}{among}"


def schemas(known: Catalog, folder: Path) -> Iterator[str]:
    """The keys of every ``--json``, and what they hold."""
    ours = read(default_path())
    (folder / "log").write_text(
        "[rank1]: RuntimeError: Expected to mark a variable ready only once; lora_B.weight\n"
    )
    with (folder / "log").open("rb") as stream:
        answer = answers.answer(stream, ours, SAY, None)
    here, _ = lock.here(known)
    asked = examination.Asked(command="torchrun train.py")
    shown: dict[str, object] = {
        "explain --json": answer_page.data(answer, SAY),
        "doctor --json": views.data(examination.examine(known, asked, SAY)),
        "list --json": listing.data(ours),
        "lock --diff --json": lock.data(lock.Change(here, here, (Difference("added", "x", "", "y"),))),
        "retire --json": retire.data(ours),
        "vlmpatch.lock": _lock(lockfile.text(here)),
    }
    for where, data in shown.items():
        yield from sorted(_keys(where, json.loads(json.dumps(data))))


def _lock(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return dict(tomllib.loads(text))


# Under these the keys are ids, packages or names of variables; what they hold is of one kind.
OPEN = {"versions", "packages", "environment", "requires", "shapes"}
KINDS = {str: "text", bool: "true or false", int: "a number", float: "a number", type(None): "null"}


def _keys(where: str, value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in OPEN:
                yield from _keys(f"{where} .{name}.*", next(iter(inner.values()), None))
            else:
                yield from _keys(f"{where} .{name}", inner)
    elif isinstance(value, list):
        for inner in value[:1]:
            yield from _keys(f"{where}[]", inner)
        if not value:
            yield f"{where}[]"
    else:
        yield f"{where}: {KINDS[type(value)]}"


EXITS = {
    ("list",): 0,
    ("explain", "F3"): 0,
    ("explain", "{folder}/unknown.log"): 1,
    ("explain", "{folder}/none.log"): 2,
    ("doctor", "--digest"): 1,  # there is no torch
    ("doctor", "--colour"): 2,
    ("verify",): 1,
    ("verify", "--only", "no-such-patch"): 2,
    ("run", "no-such-command"): 127,
    ("run", "{folder}/locked"): 126,
    ("run",): 2,
    ("retire",): 0,
    ("new", "Bad_Id", "--upstream", "lib"): 2,
    ("lock", "--file", "{folder}/vlmpatch.lock"): 0,
    ("lock", "--file", "{folder}/vlmpatch.lock", "--diff"): 0,
    ("lock", "--file", "{folder}/other.lock", "--diff"): 1,
    ("lock", "--file", "{folder}/none.lock", "--diff"): 2,
}


@pytest.fixture
def folder(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    world.package("greeter")
    world.distribution("greeter", "1.0")
    world.patch("greeter", '{ greeter = ">=1,<2.dev0" }')
    (world.folder / "unknown.log").write_text(
        'Traceback (most recent call last):\n  File "a.py"\nKeyError: 3\n'
    )
    (world.folder / "locked").write_text("#!/no/such/interpreter\n")
    (world.folder / "locked").chmod(0o755)
    for name in [name for name in os.environ if examination.tells(name)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_MODULES_CACHE", str(world.folder))
    monkeypatch.setenv("VLMPATCH_LOG", "warning")
    return world.folder


def test_the_face_is_as_it_was(folder: Path, world: World) -> None:
    parts: dict[str, Iterator[str]] = {
        "Python": functions(),
        "Values": values(),
        "Command line": command_line(),
        "Data": schemas(world.catalog(), folder),
        "Exit codes": (f"vlmpatch {' '.join(words)}: {code}" for words, code in EXITS.items()),
        "Annotations": iter(ci.FORMS),
    }
    text = "\n".join(f"# {name}\n\n" + "\n".join(lines) + "\n" for name, lines in parts.items())
    if WRITE:
        FILE.write_text(text)
    assert text == FILE.read_text(), f"VLMPATCH_GOLDEN=write pytest {__file__} rewrites {FILE.name}"


@pytest.mark.parametrize(("words", "code"), EXITS.items(), ids=[" ".join(words) for words in EXITS])
def test_exit_codes(
    words: tuple[str, ...], code: int, folder: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "execve", _refusing)
    catalog = world.catalog()
    assert lock.lock(catalog, SAY, str(folder / "vlmpatch.lock")) == 0
    text = (folder / "vlmpatch.lock").read_text()
    (folder / "other.lock").write_text(text.replace('greeter = "1.0"', 'greeter = "1.1"'))
    if words[0] == "lock":
        monkeypatch.setattr("vlmpatch.catalog.sets.default_path", lambda: catalog.path)
    try:
        ended = cli.main([word.format(folder=folder) for word in words])
    except SystemExit as leaving:  # argparse
        ended = leaving.code  # type: ignore[assignment]
    assert ended == code


def _refusing(*_: object) -> None:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("page", PAGES)
def test_the_page_has_each_name(page: str) -> None:
    text = (CHECKOUT / page).read_text("utf-8")
    named = set(re.findall(r"`([^`]+)`", text))
    assert set(environment.NAMES) <= named
    assert {name for name in vlmpatch.__all__ if name != "__version__"} <= {
        re.sub(r"^vlmpatch\.|\(.*$", "", each) for each in named
    }
    verbs = {line.split()[1] for line in command_line() if len(line.split()) == 2 and "-" not in line}
    rows = {row.split("`")[1]: row for row in text.splitlines() if row.startswith("| `")}
    for verb in verbs:
        codes_ = {str(code) for words, code in EXITS.items() if words[0] == verb and code}
        told = set(re.findall(r"\b(\d{1,3})\b", rows[verb]))
        assert codes_ <= told, (verb, codes_ - told)
