from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmpatch.catalog import environment

KNOWN = {"zero3-gather", "torch-default"}


def test_nothing_said() -> None:
    assert environment.read({}, KNOWN) == environment.Settings()


def test_disable_takes_commas_and_blanks() -> None:
    assert environment.read({"VLMPATCH_DISABLE": " zero3-gather, torch-default"}, KNOWN).disable == KNOWN


def test_disable_all() -> None:
    assert environment.read({"VLMPATCH_DISABLE": "all"}, KNOWN).disable == KNOWN


def test_unknown_id_is_named_with_the_nearest() -> None:
    found = environment.read({"VLMPATCH_DISABLE": "zero3-gathr,torch-default"}, KNOWN)
    assert found.disable == {"torch-default"}
    (problem,) = found.problems
    assert "zero3-gathr" in problem.what
    assert "zero3-gather" in problem.remedy


def test_a_former_id_means_the_patch_that_took_its_place_and_is_told() -> None:
    found = environment.read({"VLMPATCH_DISABLE": "zero3-old"}, KNOWN, {"zero3-old": "zero3-gather"})
    assert found.disable == {"zero3-gather"}
    (problem,) = found.problems
    assert problem.what == "'zero3-old' has become 'zero3-gather'"


@pytest.mark.parametrize("name", ["VLMPATCH_FULL", "VLMPATCH_LAB_GLOO", "VLMPATCH_SOURCES"])
def test_a_variable_of_the_tests_is_no_mistake(name: str) -> None:
    assert environment.read({name: "x"}, KNOWN).problems == ()


def test_a_variable_of_no_known_name_is_told_with_the_nearest() -> None:
    found = environment.read({"VLMPATCH_LGO": "info", "VLMPATCH_LAB": "x", "HOME": "/"}, KNOWN)
    (problem,) = found.problems
    assert problem.where == "VLMPATCH_LGO"
    assert "'VLMPATCH_LOG'" in problem.remedy
    assert found == environment.Settings(problems=(problem,))


@pytest.mark.parametrize(("value", "strict"), [("1", True), ("TRUE", True), ("0", False), ("", False)])
def test_strict(value: str, strict: bool) -> None:
    found = environment.read({"VLMPATCH_STRICT": value}, KNOWN)
    assert (found.strict, found.problems) == (strict, ())


@given(st.dictionaries(st.sampled_from(["VLMPATCH_DISABLE", "VLMPATCH_STRICT", "VLMPATCH_LOG"]), st.text()))
def test_garbage_is_reported_and_has_no_effect(environ: dict[str, str]) -> None:
    found = environment.read(environ, KNOWN)
    assert found.log in environment.LEVELS
    assert found.disable <= KNOWN
    if environ.get("VLMPATCH_LOG", "info").strip().lower() not in environment.LEVELS:
        assert any(problem.where == "VLMPATCH_LOG" for problem in found.problems)
