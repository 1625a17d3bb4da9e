"""What ``python -m tests.trust`` counted last, kept in ``data/trust.csv``: docs/evidence.md quotes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.lab import table

STORE = Path(__file__).resolve().parents[2] / "data" / "trust.csv"
COLUMNS = ("patches", "orders", "faults", "rounds", "threads")
AGAIN = ".venv/bin/python -m tests.trust tf457-ds0182 --faults 2 --rounds 4 --record"


def read(store: Path = STORE) -> dict[str, int]:
    """The counts by their names.

    Raises:
        table.Broken: the file is not whole.
    """
    lines = [line for _, line in table.read(store, COLUMNS, AGAIN)]
    if len(lines) != 1:
        raise table.Broken(store, 1, f"{len(lines)} lines and not one", AGAIN)
    return {name: int(number) for name, number in lines[0].items()}


def write(counts: Mapping[str, int], store: Path = STORE) -> None:
    """Keep ``counts`` in place of what was counted before."""
    table.write(store, COLUMNS, [[str(counts[name]) for name in COLUMNS]])
