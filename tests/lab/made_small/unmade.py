"""Why a class could not be made, and whether that reason was looked at."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import NamedTuple

FORWARDLESS = "it has no forward"
PART = "a part of "  # a class that can be made and trains it
PACKAGE = re.compile(r"requires the (?P<said>\w+) library but|No module named '(?P<missing>\w+)")
STORE = Path(__file__).with_name("unmade.toml")


class Reason(NamedTuple):
    """Why classes cannot be made, in both languages; ``says`` is what their record has to have."""

    classes: list[str]
    says: str
    en: str
    zh: str


@functools.cache
def entries() -> dict[str, Reason]:
    """The reasons that were looked at."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    found = tomllib.loads(STORE.read_text(encoding="utf-8"))
    return {name: Reason(**entry) for name, entry in found.items()}


def package(recorded: str) -> str:
    """The package that the stack has not, where that is the reason on record."""
    found = PACKAGE.search(recorded)
    return (found["said"] or found["missing"]) if found else ""


def looked_at(name: str, recorded: str) -> Reason | None:
    """The reason that is known for the class ``name`` and for what its record says."""
    return next((each for each in entries().values() if name in each.classes and each.says in recorded), None)


def why(name: str, recorded: str) -> str:
    """Of which kind the reason on record is; nothing where nobody looked into it."""
    kinds = {
        "part": recorded.startswith(PART),
        "forwardless": recorded.endswith(FORWARDLESS),
        "package": bool(package(recorded)),
        "looked at": looked_at(name, recorded) is not None,
    }
    return next((kind for kind, it_is in kinds.items() if it_is), "")
