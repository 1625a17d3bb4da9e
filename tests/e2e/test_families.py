"""Every image-and-text family that can be made small: what holds bare holds with us."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import families

pytestmark = pytest.mark.slow
LEAST = 20  # families; 27 could be made when this was written


def test_what_holds_bare_holds_with_us(tmp_path: Path) -> None:
    found = families.perform("tf457-ds0182", [], tmp_path)
    ran = {kind: about for kind, about in found.items() if "not made" not in about}
    assert len(ran) >= LEAST, found
    assert not {kind: about for kind, about in ran.items() if not families.holds(about)}
