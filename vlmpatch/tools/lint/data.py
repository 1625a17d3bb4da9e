"""How many samples of a data set have an image: counted from its first lines, nothing is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from vlmpatch.support import files

ROWS = 2000
BYTES = 8 << 20
_KEYS = ("image", "images", "videos", "video", "image_path", "pixel_values")


class Count(NamedTuple):
    """Of ``rows`` samples looked at, ``images`` have one."""

    rows: int
    images: int


def count(path: str) -> Count | None:
    """Count in a JSON or JSON-lines file; None where it is neither."""
    try:
        text = files.read(path, BYTES, cut=path.endswith(".jsonl"))
        if path.endswith(".jsonl"):
            rows = [json.loads(line) for line in text.splitlines()[:-1][:ROWS] or text.splitlines()]
        else:
            rows = json.loads(text)
    except (OSError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(rows, list):
        return None
    return _count(rows[:ROWS])


def _count(rows: Iterable[object]) -> Count:
    tables = [row for row in rows if isinstance(row, dict)]
    return Count(len(tables), sum(_shows(row) for row in tables))


def _shows(row: dict[str, object]) -> bool:
    return any(row.get(key) for key in _KEYS) or "<image>" in json.dumps(row, ensure_ascii=False)[:20_000]
