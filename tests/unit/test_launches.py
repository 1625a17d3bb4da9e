"""What public projects ship as launch scripts is understood: a case a shape, in ``launches.toml``.

What is understood of the scripts themselves is in ``data/launches.csv``; ``tests/e2e`` examines them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab import launches
from tests.lab.launches import line
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read as read_catalog
from vlmpatch.tools import codes
from vlmpatch.tools.lint import understood
from vlmpatch.tools.lint.command import read
from vlmpatch.tools.lint.context import Around
from vlmpatch.tools.lint.launch_config import LaunchConfig
from vlmpatch.tools.lint.rules import lint
from vlmpatch.tools.view.language import Words

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CASES = tomllib.loads(Path(__file__).with_name("launches.toml").read_text(encoding="utf-8"))["launch"]
INSTALLED = {"transformers": "4.57.6", "deepspeed": "0.18.2", "torch": "2.8.0"}


@pytest.mark.parametrize("case", CASES, ids=[case["stands_for"].partition(" (")[0][:60] for case in CASES])
def test_a_launch_is_understood(case: dict[str, Any], tmp_path: Path) -> None:
    for name, text in case.get("files", {}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    reading = read(case["command"], "the command", str(tmp_path))
    assert [line(understood.of(launch)) for launch in reading.launches] == case["understood"]
    around = Around(None, INSTALLED, {}, Words("en"))
    found = {
        finding.code for launch in reading.launches or (LaunchConfig(),) for finding in lint(launch, around)
    }
    assert sorted(found) == case["findings"]
    assert reading.problems == ()


def test_the_record_of_shipped_scripts_is_sound() -> None:
    shipped, known = launches.read(), read_catalog(default_path()).entries
    assert launches.written(shipped) == launches.RECORD.read_text(encoding="utf-8")
    assert len({each.id for each in shipped}) == len(shipped) >= 52
    assert all(len(each.commit) == 40 and len(each.sha256) == 64 for each in shipped)
    ended = [word.partition(":") for each in shipped for word in each.ended.replace(";", " ").split()]
    assert {id_ for _, _, ids in ended for id_ in ids.split(",")} <= known.keys()
    for each in shipped:
        wrong = set(each.wrong.replace(";", " ").split())
        assert wrong <= codes.read().keys()
        assert set(each.left.replace(";", " ").split()) <= wrong
