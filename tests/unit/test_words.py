"""Plain standard English in every page, docstring, comment and message: no clipped or archaic phrase."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A word before a closing quote is one that the files of data/ hold.
NOT_PLAIN = re.compile(
    r"\b(?:in so many words|mend(?:s|ed|ing)?(?!\")|(?:is|are|was|were) (?:not )?to be had|ended by"
    r"|somebody|whoever|whomever|nevertheless|where(?:by|in|of|to)|there(?:by|in|of|to)|here(?:by|in|to)|unto|hence|lest|naught|aught|withal|betwixt"
    r"|he|him|his)\b",
    re.IGNORECASE,
)
WRITTEN = ("*.py", "*.md", "*.toml", "*.yml", "*.jinja", "Makefile")
# What users and other programs wrote, and this list. A word changed in a shim has every stack made anew.
NOT_OURS = ("tests/logs/", "tests/innocents/", "tests/unit/test_words.py", "tests/lab/shims/")


def texts() -> list[str]:
    """The files of ours that git knows or would."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *WRITTEN)
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [name for name in listed if not name.startswith(NOT_OURS) and (ROOT / name).is_file()]


def test_no_phrase_is_clipped_or_archaic() -> None:
    names = texts()
    assert len(names) > 500
    lines = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name in names
        for number, line in enumerate((ROOT / name).read_text("utf-8").splitlines(), 1)
        if NOT_PLAIN.search(line)
    ]
    assert lines == []


def test_the_phrases_are_found() -> None:
    for phrase in ("It is not to be had.", "Ended by 0.19", "whoever calls", "in so many words", "is mended"):
        assert NOT_PLAIN.search(phrase)
    for plain in ("where it is", "the heir", "there is nothing to be done", "hidden_by", "amended"):
        assert not NOT_PLAIN.search(plain)
