"""What a patch file says of itself at its head, and its Chinese: ``docs/zh-CN/patches/<upstream>.toml``.

``of`` is the digest of the English that was translated. Where that has changed since, it is shown instead:
``python -m tests.generate --translated ID`` says that both were read again.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.lab import pages

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = "docs/zh-CN/patches"
_LITERAL = re.compile(r"``(.+?)``(?!`)", re.DOTALL)


class Story(NamedTuple):
    """The head of a patch file, in Markdown, and whether it is in the language that was asked for."""

    text: str
    translated: bool


def told(path: Path, language: str) -> Story:
    """What the patch file ``path`` says of itself in one language."""
    english = own_words(path)
    if language == "en":
        return Story(english, True)
    chinese = _translations(_chinese_of(path)).get(_id(path))
    if chinese is None or chinese["of"] != digest(english):
        return Story(english, False)
    return Story(chinese["text"].strip(), True)


def owed(root: Path) -> Iterator[str]:
    """The patches of ``root`` whose head has no Chinese, or has changed since it was translated."""
    for path in patch_files(root):
        if not told(path, "zh").translated:
            where = _chinese_of(path)
            known = _id(path) in _translations(where)
            changed = ", the English has changed since" if known else ""
            yield f"{where.relative_to(root)}, {_id(path)}: text{changed}"


def patch_files(root: Path) -> list[Path]:
    """The file of every patch of ``root``."""
    return sorted((root / "patches").glob("[a-z]*/[a-z]*.py"))


def own_words(path: Path) -> str:
    """The head of a patch file, in Markdown; a literal with a backtick in it keeps two around it."""
    written = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return _LITERAL.sub(lambda found: f"`` {found[1]} ``" if "`" in found[1] else f"`{found[1]}`", written)


def digest(english: str) -> str:
    """Of the words alone: a line that ends elsewhere says the same."""
    return hashlib.sha256(" ".join(english.split()).encode()).hexdigest()[:12]


def _chinese_of(path: Path) -> Path:
    return path.parents[2] / FOLDER / f"{path.parent.name}.toml"


def _translations(path: Path) -> dict[str, dict[str, str]]:
    return tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}


def _id(path: Path) -> str:
    return path.stem.replace("_", "-")


def stamp(ids: Collection[str]) -> set[str]:
    """Write today's digest to the translations of these patches; returns those that have none."""
    left = {*ids}
    for path in patch_files(pages.ROOT):
        where, id_ = _chinese_of(path), _id(path)
        if id_ in left and id_ in _translations(where):
            left.remove(id_)
            head = re.compile(rf'(?<=^\[{re.escape(id_)}\]\nof = )"[^"\n]*"', re.MULTILINE)
            where.write_text(head.sub(f'"{digest(own_words(path))}"', where.read_text("utf-8")), "utf-8")
    return left
