"""How alike two texts are, by the standard library."""

from __future__ import annotations

import difflib


def ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
