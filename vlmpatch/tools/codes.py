"""What doctor's codes mean, from ``codes.toml``."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Pair = tuple[str, str]


class Code(NamedTuple):
    """One code; the pairs are English and Chinese. ``failures`` are what it warns of."""

    id: str
    title: Pair
    cause: Pair
    remedy: Pair
    failures: tuple[str, ...]


@functools.cache
def read() -> dict[str, Code]:
    """Every code, by its id."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "codes.toml"), "rb") as handle:
        return {id_: _code(id_, table) for id_, table in tomllib.load(handle).items()}


def _code(id_: str, table: dict[str, Any]) -> Code:
    title, cause, remedy = (
        (table[key], table.get(f"{key}_zh", table[key])) for key in ("title", "cause", "remedy")
    )
    return Code(id_, title, cause, remedy, tuple(table.get("failures", ())))
