"""The list of public threads names what there is."""

from __future__ import annotations

import pytest

from tests.matrix import field_reports

DATA = field_reports.read()


def test_the_data_names_patches_and_stacks_that_exist() -> None:
    assert field_reports.problems(DATA) == []


def test_problems_are_found() -> None:
    report = {"url": "x", "class": "a", "state": "ended", "note": "said"}
    wrong = {"class": [{"id": "a", "patches": ["nobody"], "measured": ["nowhere"]}, {"id": "b"}]}
    found = field_reports.problems({**wrong, "report": [report, {**report, "class": "b"}]})
    assert found == [
        "a: no patch nobody",
        "a: no stack nowhere",
        "x: a note in one language",
        "x: fixed by nothing",
        "x: a note in one language",
        "x: 2 times",
    ]


@pytest.mark.parametrize(
    ("versions", "fits"),
    [
        ("transformers 4.46.0", True),
        ("torch 2.5.0, transformers 4.44.0", False),
        ("transformers 4.44.0, python 3.11", False),
        ("transformers 4.47.0.dev0", True),
        ("transformers <5.0.0", True),
        ("transformers 4.44.0 (as given)", True),
        ("2025-04", True),
    ],
)
def test_what_is_ended_names_versions_that_a_patch_is_for(versions: str, fits: bool) -> None:
    report = {"url": "x", "class": "a", "state": "ended", "versions": versions}
    found = field_reports.problems(
        {"class": [{"id": "a", "patches": ["overridden-compute-loss"]}], "report": [report]}
    )
    assert found == ([] if fits else [f"x: no patch is for {versions}"])


@pytest.mark.parametrize("state", [state for state in field_reports.STATES if state != "ended"])
@pytest.mark.parametrize("said", [{}, {"note": " ", "note_zh": " "}])
def test_whatever_is_not_ended_says_why(state: str, said: dict[str, str]) -> None:
    report = {"url": "x", "class": "a", "state": state, **said}
    found = field_reports.problems({"class": [{"id": "a"}], "report": [report]})
    assert found == [f"x: {state}, and nothing says why"]


def test_every_thread_that_was_read_has_an_entry() -> None:
    threads = field_reports.threads()
    assert len(threads) > 250
    assert len(threads) == len(set(threads))
    assert field_reports.unanswered(DATA, threads) == []


def test_a_thread_without_an_entry_is_found() -> None:
    assert field_reports.unanswered({"report": [{"url": "a"}]}, ["a", "b"]) == ["b"]
