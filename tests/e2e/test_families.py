"""Image-and-text families that can be made small: what holds bare holds with us (`VLMPATCH_FULL=1`: all)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import families
from tests.standin.cells import FULL

pytestmark = pytest.mark.slow
LEAST = 20  # families; 27 could be made when this was written
SOME = ("aria", "mllama", "ovis2")  # experts, a text model that skips layers, a table it multiplies by


def test_what_holds_bare_holds_with_us(tmp_path: Path) -> None:
    found = families.perform("tf457-ds0182", [] if FULL else [*SOME], tmp_path)
    ran = {kind: about for kind, about in found.items() if "not made" not in about}
    assert len(ran) >= (LEAST if FULL else len(SOME)), found
    assert not {kind: about for kind, about in ran.items() if not families.holds(about)}
