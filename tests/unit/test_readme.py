"""The figures of docs/evidence.md are those on file, and the README has what most people meet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.generate import evidence, readme
from tests.generate.failures import KNOWN
from tests.innocents.texts import NEWEST, OTHERS
from tests.lab import pages, table
from tests.trust import record

NUMBERS = dict.fromkeys(("programs", "beside", *record.COLUMNS, *evidence.fresh(evidence.drawn())), 1234)


@pytest.mark.parametrize("language", pages.LANGUAGES)
def test_each_number_is_written_anew(language: str) -> None:
    text, counts = evidence.page(language).read_text("utf-8"), evidence.counts()
    made = evidence.counted(text, language, NUMBERS)
    assert made.count("1,234") == text.count("1,234") + len(NUMBERS)
    assert evidence.counted(made, language, counts) == evidence.counted(text, language, counts)


@pytest.mark.parametrize("language", pages.LANGUAGES)
def test_a_sentence_that_is_gone_is_told(language: str) -> None:
    with pytest.raises(ValueError, match="no sentence"):
        evidence.counted("nothing is counted here", language, NUMBERS)


def test_the_innocents_run_on_four_stacks() -> None:
    assert len({NEWEST, *OTHERS}) == 4
    assert "on each of four stacks" in " ".join(evidence.page("en").read_text("utf-8").split())


@pytest.mark.parametrize("language", pages.LANGUAGES)
def test_the_readme_leads_to_every_failure(language: str) -> None:
    text = readme.filled(language)
    shown = [failure for failure in KNOWN.known.values() if failure.readme]
    assert 10 < len(shown) < 20
    page = pages.reference(language, "failures").relative_to(pages.ROOT).as_posix()
    assert all(f"({page}#{failure.id.lower()})" in text for failure in shown)
    assert f"({page})" in text


def test_counts_are_kept(tmp_path: Path) -> None:
    counts = {name: number for number, name in enumerate(record.COLUMNS)}
    record.write(counts, tmp_path / "trust.csv")
    assert record.read(tmp_path / "trust.csv") == counts
    with pytest.raises(table.Broken, match="0 lines"):
        record.read(tmp_path / "none.csv")


def test_pages_are_made_without_the_test_tools() -> None:
    """The site's own environment has none of them."""
    program = "import sys; sys.modules['pytest'] = None; import tests.generate"
    done = subprocess.run([sys.executable, "-c", program], cwd=pages.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
