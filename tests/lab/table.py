"""Measurements on file: CSV that a person can read in a diff, one line a measurement.

Line ends are LF and every line stands alone: what would break a cell over two lines is written as an escape
(``\\n``). A file that is not whole is never read as if it were.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\0": "\\0"}
_PLAIN = {escape: character for character, escape in ESCAPES.items()}
_ESCAPED = str.maketrans(ESCAPES)


class Broken(ValueError):
    """A file of measurements that cannot be trusted."""

    def __init__(self, path: Path, line: int, what: str, again: str) -> None:
        super().__init__(
            f"{path}, line {line}: {what}. Take the file back from git (git checkout -- {path}), "
            f"or delete it and measure again: {again}"
        )


def read(path: Path, columns: Sequence[str], again: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The lines of ``path`` after its header, each with its number; none where there is no file.

    Args:
        path: the file.
        columns: the header it must have.
        again: the command that measures what the file holds, for the error.

    Raises:
        Broken: another header, a line with more or fewer cells, one that is cut off, or no text at all.
    """
    if not path.exists():
        return
    try:
        whole = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise Broken(path, 1, f"not UTF-8 ({error})", again) from None
    lines = whole.split("\n")
    if lines.pop():
        raise Broken(path, len(lines) + 1, "the file is cut off: its last line has no end", again)
    if not lines or _cells(lines[0]) != list(columns):
        raise Broken(path, 1, f"the header is not {','.join(columns)}", again)
    for number, line in enumerate(lines[1:], 2):
        cells = _cells(line)
        if len(cells) != len(columns):
            raise Broken(path, number, f"{len(cells)} cells and not {len(columns)}", again)
        yield number, dict(zip(columns, cells, strict=True))


def nested(path: Path, columns: Sequence[str], again: str) -> dict[str, dict[str, dict[str, str]]]:
    """The lines of ``path`` by their first two cells; see ``read``."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for _, line in read(path, columns, again):
        found.setdefault(line.pop(columns[0]), {})[line.pop(columns[1])] = line
    return found


def write_nested(
    path: Path, columns: Sequence[str], found: Mapping[str, Mapping[str, Mapping[str, str]]]
) -> None:
    """Write what ``nested`` reads, in the order of the first two cells; what is not said is an empty cell."""
    rows = [
        (first, second, *(line.get(column, "") for column in columns[2:]))
        for first, lines in sorted(found.items())
        for second, line in sorted(lines.items())
    ]
    write(path, columns, rows)


def write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write ``rows`` in their order; a reader meanwhile sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_bytes(text(columns, rows).encode())
    draft.replace(path)


def write_over(
    path: Path,
    columns: Sequence[str],
    known: Iterable[Mapping[str, str]],
    measured: Sequence[Mapping[str, str]],
    by: str,
) -> None:
    """Write ``measured`` and what is ``known`` of others, in the order of the column ``by``."""
    again = {line[by] for line in measured}
    lines = sorted([*(line for line in known if line[by] not in again), *measured], key=lambda line: line[by])
    write(path, columns, [[line[name] for name in columns] for line in lines])


def text(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """What ``write`` writes."""
    made = io.StringIO(newline="")
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([cell.translate(_ESCAPED) for cell in row] for row in rows)
    return made.getvalue()


def _cells(line: str) -> list[str]:
    try:
        (cells,) = csv.reader([line], strict=True)
    except (csv.Error, ValueError):  # quotes that do not close, or an empty line
        return []
    return [_unescaped(cell) for cell in cells]


def _unescaped(cell: str) -> str:
    found, rest = "", cell
    while (at := rest.find("\\")) >= 0:
        escape = rest[at : at + 2]
        found, rest = found + rest[:at] + _PLAIN.get(escape, escape), rest[at + 2 :]
    return found + rest
