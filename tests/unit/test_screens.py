"""What is kept of a screen that was looked at, and when another one is not the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.site import screens
from tests.site.screens import Screen

SCREEN = Screen({"h1": (46, 150, 300, 40), "article": (46, 100, 900, 700)}, screens.digest("99 runs"))


def test_what_is_recorded_is_known_again(tmp_path: Path) -> None:
    screens.record({"start-en": SCREEN}, tmp_path / "screens.csv")
    assert screens.known(tmp_path / "screens.csv") == {"start-en": SCREEN}


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (SCREEN, []),
        (SCREEN._replace(text=screens.digest("101  runs\n")), []),
        (SCREEN._replace(text=screens.digest("99 rows")), ["its text is another"]),
        (SCREEN._replace(boxes={**SCREEN.boxes, "h1": (46, 158, 300, 40)}), []),
        (
            SCREEN._replace(boxes={**SCREEN.boxes, "h1": (46, 250, 300, 40)}),
            ["h1 lies at (46, 250, 300, 40), and lay at (46, 150, 300, 40)"],
        ),
        (SCREEN._replace(boxes={"h1": (46, 150, 300, 40)}), ["article is gone"]),
        (SCREEN._replace(boxes={**SCREEN.boxes, "header": (0, 0, 1280, 96)}), ["header is new"]),
    ],
)
def test_what_differs_is_said(now: Screen, says: list[str]) -> None:
    assert screens.differs(now, SCREEN) == says


def test_a_screen_that_nobody_has_looked_at_is_named() -> None:
    assert screens.differs(SCREEN, None) == ["nobody has looked at it"]
