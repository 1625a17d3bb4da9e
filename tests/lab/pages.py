"""Where the pages of docs/ lie in each language, and how the generated part of one is filled in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = {"en": ROOT / "docs", "zh": ROOT / "docs" / "zh-CN"}
LANGUAGES = tuple(DOCS)
END = "<!-- end -->"


def reference(language: str, name: str) -> Path:
    """The generated page ``name`` (``failures``)."""
    return DOCS[language] / "reference" / f"{name}.md"


def in_other_language(language: str, name: str) -> str:
    """The line of a page of ``reference`` that leads to its twin."""
    if language == "en":
        return f"[中文](../zh-CN/reference/{name}.md)"
    return f"[English](../../reference/{name}.md)"


def filled(text: str, begin: str, content: str) -> str:
    """``text`` with ``content`` between its lines ``begin`` and ``END``.

    Raises:
        ValueError: there is no such line.
    """
    before, found, rest = text.partition(begin)
    if not found:
        raise ValueError(f"the page has no line {begin}")
    return f"{before}{begin}\n\n{content}\n\n{END}{rest.partition(END)[2]}"


def stale(wanted: Mapping[Path, str]) -> list[Path]:
    """The files that do not hold what is wanted."""
    return [path for path, text in wanted.items() if not path.exists() or path.read_bytes() != text.encode()]


def write(wanted: Mapping[Path, str]) -> list[Path]:
    """Make every file hold what is wanted; returns those that did not."""
    changed = stale(wanted)
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wanted[path].encode())
    return changed


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def rebased(text: str, folder: str) -> str:
    """``text`` whose links to other pages, written as from ``docs/``, go by way of ``folder``."""
    return re.sub(r"\]\((?=[\w.-]+\.md)", f"]({folder}/", text)
