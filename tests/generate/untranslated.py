"""What is English in both languages because nobody has written the Chinese yet; a release wants none."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.generate import sentences, stories
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read
from vlmpatch.tools import cases
from vlmpatch.tools.explain import failures
from vlmpatch.tools.view import reasons

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def owed() -> list[str]:
    """Each such text: where it is, and its key."""
    here = Path(default_path()).parent
    entries = tomllib.loads(Path(default_path()).read_text("utf-8"))["patch"]
    summaries = [f"compat.toml, {entry['id']}: summary" for entry in entries if "summary_zh" not in entry]
    known = failures.read(default_path()).known.values()
    texts = [f"failures/, {each.id}: {key}" for each in known for key in each.untranslated]
    shown = cases.read(read(default_path())).known.values()
    named = [f"cases/, {case.id}: en" for case in shown if case.untranslated]
    said = [
        f"{path.relative_to(here)}: {clause}"
        for path, clause in sentences.of_patches(here)
        if clause not in reasons.table()
    ]
    return [*summaries, *texts, *named, *said, *stories.owed(here)]
