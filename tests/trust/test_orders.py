"""Every order of events, on a target that has one of each thing a patch can change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import World
from tests.trust.orders import ALL

PARTS = 16  # each in a process of its own: a second copy of vlmpatch stays in memory

TARGET = '''
"""Everything a patch can change."""
import functools

registry = {"old": 1}
value = object()

def function(a, b=1, *, c=None):
    """Words."""
    return a, b, c

class Base:
    def inherited(self, x):
        return x

class Target(Base):
    attribute = object()

    def method(self, x=None):
        return x

    @staticmethod
    def static(x):
        return x

    @classmethod
    def kind(cls, x):
        return cls, x
'''
PATCH = """
def look(code):
    return None

def through(original, *args, **kwargs):
    return original(*args, **kwargs)

def apply(patch, module):
    patch.wrap(module, "function", through)
    for name in ("method", "static", "kind", "inherited"):
        patch.wrap(module.Target, name, through)
    patch.replace(module, "value", NAME)
    patch.replace(module, "new", NAME)
    patch.replace(module.Target, "attribute", NAME)
    patch.set_item(module.registry, "old", NAME)
    patch.set_item(module.registry, "new", NAME)
    patch.set_default(module.function, "b", NAME)
    patch.set_default(module.function, "c", NAME)
"""


def job(world: World, **numbers: Any) -> dict[str, Any]:
    """A job for the worker: two patches that share everything."""
    world.package("everything", TARGET)
    world.distribution("fakelib", "1")
    for name in ("one", "two"):
        world.patch("everything", '{ fakelib = ">=1" }', PATCH.replace("NAME", repr(name)))
    catalog = world.catalog().path
    path = world.folder / "job.json"
    path.write_text(
        json.dumps(
            {
                "targets": ["everything"],
                "folder": str(world.folder / "modules"),
                "catalog": catalog,
                "patches": str(world.patches),
                **numbers,
            }
        )
    )
    (world.folder / "modules").mkdir()
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.trust.worker", str(path)],
        env={**os.environ, "PYTHONPATH": f"{root}:{world.folder}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_orders_and_faults(world: World) -> None:
    report = job(world, orders=60, faults=400, rounds=100, threads=5)
    assert not report["found"], "\n".join(report["found"])
    assert report["orders"] == 2 * 60
    assert report["faults"] > 400
    assert len(report["patches"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_order(world: World, part: int) -> None:
    report = job(world, part=[part, PARTS], faults=4000, rounds=1000, threads=20)
    assert not report["found"], "\n".join(report["found"])
    assert report["orders"] == 2 * len(ALL[part::PARTS])


@pytest.mark.slow
def test_ten_thousand_rounds(world: World) -> None:
    report = job(world, orders=1, faults=1, rounds=10_000, threads=1)
    assert not report["found"], "\n".join(report["found"])
    assert report["rounds"] == 10_000
