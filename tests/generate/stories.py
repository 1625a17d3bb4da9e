"""Which patch files have no Chinese for what they say of themselves, and which was read again.

``python -m tests.generate --translated ID`` says that the Chinese of a patch is of its English as it is now.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from tests.lab import pages
from vlmpatch.tools.explain.stories import chinese_of, digest, id_of, own_words, told, translations


def owed(root: Path) -> Iterator[str]:
    """The patches of ``root`` whose head has no Chinese, or has changed since it was translated."""
    for path in patch_files(root):
        if not told(path, "zh").translated:
            where = chinese_of(path)
            known = id_of(path) in translations(where)
            changed = ", the English has changed since" if known else ""
            yield f"{where.relative_to(root)}, {id_of(path)}: text{changed}"


def patch_files(root: Path) -> list[Path]:
    """The file of every patch of ``root``."""
    return sorted((root / "patches").glob("[a-z]*/[a-z]*.py"))


def stamp(ids: Collection[str]) -> set[str]:
    """Write today's digest to the translations of these patches; returns those that have none."""
    left = {*ids}
    for path in patch_files(pages.ROOT):
        where, id_ = chinese_of(path), id_of(path)
        if id_ in left and id_ in translations(where):
            left.remove(id_)
            head = re.compile(rf'(?<=^\[{re.escape(id_)}\]\nof = )"[^"\n]*"', re.MULTILINE)
            where.write_text(head.sub(f'"{digest(own_words(path))}"', where.read_text("utf-8")), "utf-8")
    return left
