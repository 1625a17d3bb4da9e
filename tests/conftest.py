"""Fixtures for tests that need a small world of their own: a fake package, a patch, a catalog."""

from __future__ import annotations

import importlib
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from vlmpatch.catalog import environment
from vlmpatch.catalog.model import Catalog
from vlmpatch.catalog.read import read
from vlmpatch.engine.engine import Engine
from vlmpatch.support import log

_numbers = itertools.count()

# These machines are shared and noisy; how long an example takes says nothing about the code.
hypothesis.settings.register_profile(
    "noisy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("noisy")

PATCH = '''
"""A patch for tests: greet() says goodbye."""
from vlmpatch.api import Unrecognised

def look(code):
    function = code.function("greet")
    if function is None:
        raise Unrecognised(f"{code.module} has no greet")
    return "greet is fixed upstream" if "goodbye" in function else None

def apply(patch, module):
    patch.wrap(module, "greet", lambda f, *args, **kw: f(*args, **kw).replace("hello", "goodbye"))
'''


UPSTREAM = "fakes"


class World:
    """A folder on ``sys.path`` with packages to patch, and a catalog with patches for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.patches = folder / "patches"
        (self.patches / UPSTREAM).mkdir(parents=True)
        (folder / "failures").mkdir()
        self.entries: list[str] = []
        self.engines: list[Engine] = []

    def package(self, name: str, source: str = 'def greet(who):\n    return "hello " + who\n') -> str:
        (self.folder / f"{name}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        return name

    def distribution(self, name: str, version: str | None) -> None:
        """Metadata as pip leaves it; ``version=None`` leaves the version out."""
        folder = self.folder / f"{name.replace('-', '_')}-{version or 'x'}.dist-info"
        folder.mkdir()
        stated = f"Version: {version}\n" if version else ""
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n{stated}")
        importlib.invalidate_caches()

    def patch(self, target: str, requires: str, source: str = PATCH, **keys: str) -> str:
        """Write a patch file and declare it; returns the patch's id."""
        number = next(_numbers)
        (self.patches / UPSTREAM / f"fake_{number}.py").write_text(source)
        importlib.invalidate_caches()
        values = {
            "id": f'"fake-{number}"',
            "failures": '["F0"]',
            "severity": '"crash"',
            "summary": '"hello"',
            "summary_zh": '"你好"',
            "targets": f'["{target}"]',
            "requires": requires,
            "upstream": '["https://example.org"]',
            **keys,
        }
        self.entries.append("\n".join(["[[patch]]", *(f"{key} = {value}" for key, value in values.items())]))
        return values["id"].strip('"')

    def catalog(self) -> Catalog:
        path = self.folder / "compat.toml"
        path.write_text("\n\n".join(["schema = 1", *self.entries]))
        return read(str(path))

    def engine(self, **environ: str) -> Engine:
        known = self.catalog()
        engine = Engine(known, environment.read(environ, known.entries, known.renamed))
        self.engines.append(engine)
        engine.arm()
        return engine


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    patches = importlib.import_module("vlmpatch.patches")
    monkeypatch.setattr(patches, "__path__", [*patches.__path__, str(made.patches)])
    yield made
    for engine in made.engines:
        engine.undo([])
        engine.hooks.remove()
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What vlmpatch warns of during the test."""
    said: list[str] = []
    monkeypatch.setattr(log, "warn", lambda text, own=False: said.append(text))
    monkeypatch.setattr(log, "_said", set())
    return said


@pytest.fixture
def imported() -> Callable[[str], Any]:
    return importlib.import_module
