"""How many Python functions are called: what a step costs in Python, on a busy machine too."""

from __future__ import annotations

import sys
from collections.abc import Callable


def python_calls(step: Callable[[], None]) -> int:
    """The Python functions that one ``step`` calls, those of a recomputation in backward included."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    step()
    sys.setprofile(None)
    return count
