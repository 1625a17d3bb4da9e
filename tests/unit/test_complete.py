"""Nothing that a patch consists of is missing; what is, is said at once."""

from __future__ import annotations

from tests import complete


def test_nothing_is_missing() -> None:
    lacks = complete.missing()
    assert not lacks, f"what is missing (`python -m tests.complete`):\n{complete.told(lacks)}"
