"""``failures/``: a broken file names itself and spares the others; ids are found as people write them."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generate import old_results
from tests.lab import pages
from vlmpatch.catalog.location import default_path
from vlmpatch.tools import cli
from vlmpatch.tools.explain import failures

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OURS = failures.read(default_path())
SOUND = """
id = "F7"
order = 1
title = "Slow"
title_zh = "慢"
see = "`a message`"
where = "ZeRO-3"
cause = "Gathers."
advice = ["import vlmpatch"]
readme = [{ under = "ZeRO-3" }]
symptoms = [{ all = ["a message"] }]
"""


def parsed(text: str, name: str = "F07.toml") -> failures.Failure:
    return failures.parse(tomllib.loads(text), name)


def test_ours_are_sound() -> None:
    files = Path(default_path()).with_name("failures").glob("*.toml")
    assert OURS.problems == ()
    assert len(OURS.known) == len(list(files))


def test_what_has_no_chinese_is_english_and_owed() -> None:
    failure = parsed(SOUND)
    assert failure.title == ("Slow", "慢")
    assert failure.cause == ("Gathers.", "Gathers.")
    assert failure.readme == ((("`a message`",) * 2, ("ZeRO-3",) * 2),)
    assert failure.untranslated == ("cause", "where", "advice")  # what is quoted needs none


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('cause = "Gathers."', "", "cause is missing"),
        ('title_zh = "慢"', "title_zh = 1", "title_zh is missing, empty or not a string"),
        ("order = 1", 'order = "1"', "order is missing or no number"),
        ('see = "`a message`"', "", "see and where are missing"),
        ('id = "F7"', 'id = "F8"', "the file of that is F08.toml"),
        ("order = 1", "order = 1\nforeign = 1", "foreign is neither true nor false"),
        ("order = 1", "order = 1\ncolour = 1", "colour is an unknown key"),
        ('{ under = "ZeRO-3" }', '"ZeRO-3"', "readme is not a list of tables"),
        ('{ under = "ZeRO-3" }', '{ under = "ZeRO-3", over = "" }', "over is an unknown key"),
        ('[{ all = ["a message"] }]', '"a message"', "symptoms is not a list of tables"),
        ('{ all = ["a message"] }', '{ kind = "error" }', "symptom 1: all and any are both empty"),
        ('{ all = ["a message"] }', '{ all = ["<nobody>"] }', "symptom 1: <nobody> is no group of words"),
        ('{ all = ["a message"] }', '{ all = ["x"], under = ["zero9"] }', "symptom 1: zero9 is no engine"),
        ('{ all = ["a message"] }', '{ all = ["x"], kind = "told" }', "symptom 1: kind is told where told"),
        ('{ all = ["a message"] }', '{ told = ["x"], kind = "hint" }', "symptom 1: kind is told where told"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parsed(SOUND.replace(old, new, 1))


def test_a_broken_file_names_itself_and_spares_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "failures"
    folder.mkdir()
    (folder / "F07.toml").write_text(SOUND)
    (folder / "F08.toml").write_text("id = ")
    (folder / "F09.toml").write_text(SOUND)
    found = failures.read(str(tmp_path / "compat.toml"))
    assert list(found.known) == ["F7"]
    assert [os.path.basename(problem.where) for problem in found.problems] == ["F08.toml", "F09.toml"]
    assert all("CONTRIBUTING.md" in problem.remedy for problem in found.problems)


def test_no_folder(tmp_path: Path) -> None:
    (problem,) = failures.read(str(tmp_path / "compat.toml")).problems
    assert "cannot be read" in problem.what


@pytest.mark.parametrize("name", ["F4", "f4", "F04", "f004"])
def test_an_id_as_people_write_it(name: str) -> None:
    failure = OURS.called(name)
    assert failure is not None
    assert failure.id == "F4"


@pytest.mark.parametrize("name", ["F44444", "", "F", "4", "²", "F²"])
def test_no_id(name: str) -> None:
    assert OURS.called(name) is None


@pytest.mark.parametrize("id_", OURS.known)
def test_each_can_be_asked_for(id_: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", id_.lower(), "--lang", "en"]) == 0
    assert capsys.readouterr().out.startswith(f"{id_} · ")


@pytest.mark.parametrize("language", pages.LANGUAGES)
def test_who_has_old_results_is_told_of_every_failure_that_says_nothing(
    language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = {id_ for id_, known in OURS.known.items() if old_results.silent(known)}
    assert "F5" in quiet
    text = old_results.PAGES[language].read_text("utf-8")
    assert sorted(quiet - {*re.findall(r"\bF\d+", text, re.ASCII)}) == []
    forgotten = tmp_path / "old-results.md"
    forgotten.write_text(re.sub(r"\bF5\b", "", text), "utf-8")
    monkeypatch.setitem(old_results.PAGES, language, forgotten)
    made = old_results.filled(language).partition(old_results.BEGIN)[2]
    assert f"| [F5](reference/failures.md#f5) | {OURS.known['F5'].where[language == 'zh']} |" in made


toml_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*tomllib.loads(SOUND), "foreign", "prose", "x"]), toml_values))
def test_any_data_is_read_or_refused(changed: dict[str, Any]) -> None:
    with contextlib.suppress(ValueError):
        assert failures.parse({**tomllib.loads(SOUND), **changed}, "F07.toml").id == "F7"
