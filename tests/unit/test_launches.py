"""What public projects ship as launch scripts is understood: a case a shape, in ``launches.toml``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

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


def line(seen: understood.Understood) -> str:
    """One training in the words of ``launches.toml``."""
    switch = {True: "on", False: "off", None: None}
    shown = (*seen[1:7], switch[seen.checkpointing], seen.reentrant, seen.model)
    return " ".join("-" if value in ("", None) else str(value) for value in shown)


@pytest.mark.parametrize("case", CASES, ids=[case["stands_for"].partition(" (")[0][:60] for case in CASES])
def test_a_launch_is_understood(case: dict[str, Any], tmp_path: Path) -> None:
    for name, text in case.get("files", {}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    reading = read(case["command"], "the command", str(tmp_path))
    assert [line(understood.of(launch)) for launch in reading.launches] == case["understood"]
    around = Around(None, INSTALLED, frozenset(), Words("en"))
    found = {
        finding.code for launch in reading.launches or (LaunchConfig(),) for finding in lint(launch, around)
    }
    assert sorted(found) == case["findings"]
    assert reading.problems == ()
