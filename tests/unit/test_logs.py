"""The logs that ``python -m tests.logs.make`` made by failing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_explain import of, said

LOGS = sorted((Path(__file__).parents[1] / "logs").glob("*.log"))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_the_logs_that_were_made_by_failing(log: Path) -> None:
    shown = log.name.split(".")[0]
    assert said(log.read_bytes()) == (None if shown == "none" else shown)


def test_there_are_such_logs() -> None:
    shown = {log.name.split(".")[0] for log in LOGS}
    assert {"F1", "F2", "F3", "F4", "F6", "F9", "F11", "F13", "F16", "F19", "F20", "none"} <= shown
    assert {"F23", "F24", "F25", "F26", "F30", "D"} <= shown


def test_a_caught_exception_and_the_launchers_own_are_passed_by() -> None:
    found = of((Path(__file__).parents[1] / "logs" / "none.caught.log").read_bytes())
    assert found.hit is None
    assert found.first is not None
    assert found.first.line.startswith("ValueError: invalid literal")
