"""The README's figures are those on file."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import zero3_gather
from tests.generate import readme
from tests.innocents.texts import NEWEST, OTHERS
from tests.lab import pages, table
from tests.trust import record

NUMBERS = dict.fromkeys(("programs", "beside", *record.COLUMNS), 1234)


@pytest.mark.parametrize("language", pages.LANGUAGES)
def test_each_number_is_written_anew(language: str) -> None:
    text = readme.PAGES[language].read_text("utf-8")
    made = readme.counted(text, language, NUMBERS)
    assert made.count("1,234") == text.count("1,234") + len(NUMBERS)
    assert readme.counted(made, language, readme.counts()) == readme.counted(text, language, readme.counts())


@pytest.mark.parametrize("language", pages.LANGUAGES)
def test_a_sentence_that_is_gone_is_told(language: str) -> None:
    with pytest.raises(ValueError, match="no sentence"):
        readme.counted("nothing is counted here", language, NUMBERS)


def test_the_innocents_run_on_three_stacks() -> None:
    assert len({NEWEST, *OTHERS}) == 3
    assert "on each of three stacks" in readme.PAGES["en"].read_text("utf-8")


@pytest.mark.parametrize("language", pages.LANGUAGES)
def test_the_gathers_of_zero3_are_those_measured(language: str) -> None:
    text = readme.PAGES[language].read_text("utf-8")
    modes = ("off", "reentrant", "non-reentrant", "vlmpatch")
    for tuning, first in (("full", r"full|全参数"), ("LoRA", "LoRA")):
        line = re.search(rf"^\| (?:{first}) \|(.*)\|$", text, re.MULTILINE)
        assert line is not None
        shown = [re.match(r"[\d.]*", cell.strip()) for cell in line[1].split("|")]
        rows = [row for row in zero3_gather.read() if row["deepspeed"] == "0.18.2"]
        measured = {row["mode"]: row for row in rows if row["tuning"] == tuning}
        assert [each[0] for each in shown if each] == [measured[mode]["elements"] for mode in modes]


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
