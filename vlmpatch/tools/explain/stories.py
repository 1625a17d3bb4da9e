"""What a patch file says of itself at its head, and its Chinese: ``docs/zh-CN/patches/<upstream>.toml``.

``of`` is the digest of the English that was translated. Where that has changed since, it is shown instead.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = "docs/zh-CN/patches"  # beside ``patches/``, in a wheel too
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
    chinese = translations(chinese_of(path)).get(id_of(path))
    if chinese is None or chinese.get("of") != digest(english):
        return Story(english, False)
    return Story(chinese.get("text", english).strip(), "text" in chinese)


def own_words(path: Path) -> str:
    """The head of a patch file, in Markdown; a literal with a backtick in it keeps two around it."""
    written = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return _LITERAL.sub(lambda found: f"`` {found[1]} ``" if "`" in found[1] else f"`{found[1]}`", written)


def digest(english: str) -> str:
    """Of the words alone: a line that ends elsewhere says the same."""
    return hashlib.sha256(" ".join(english.split()).encode()).hexdigest()[:12]


def chinese_of(path: Path) -> Path:
    """Where the Chinese of the patch file ``path`` stands."""
    return path.parents[2] / FOLDER / f"{path.parent.name}.toml"


def translations(path: Path) -> dict[str, dict[str, str]]:
    """Those of one file, by patch; none where it is not there, or cannot be read."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def id_of(path: Path) -> str:
    """The patch whose file is ``path``."""
    return path.stem.replace("_", "-")
