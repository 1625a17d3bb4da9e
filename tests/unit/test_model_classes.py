"""Model classes in four modes: what is on file is whole, and every difference is spoken for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import model_classes, modes, pages
from tests.lab.made_small import unmade


def recorded() -> list[dict[str, str]]:
    return [about for kinds in model_classes.read().values() for about in kinds.values()]


def test_every_difference_has_a_failure() -> None:
    differing = [about for about in recorded() if model_classes.differs(about)]
    assert differing
    unknown = {about["family"] for about in differing if not model_classes.known(about)}
    assert not unknown, "look into them, and say so in KNOWN"
    known = {*model_classes.KNOWN.values()} - {*model_classes.NO_FAILURE}
    numbers = {number for said in known for number in said.split()}
    assert numbers <= {f"F{int(path.stem[1:])}" for path in (pages.ROOT / "failures").glob("F*.toml")}


def test_what_is_left_wrong_says_why() -> None:
    wrong = [about for about in recorded() if model_classes.is_wrong(about)]
    unsaid = {
        about["family"] for about in wrong if model_classes.known(about) not in model_classes.NO_FAILURE
    }
    assert not unsaid - {*model_classes.LEFT}


def test_a_class_that_is_refused_in_every_mode_is_not_its_family_s_failure() -> None:
    right = {"family": "gemma4", **dict.fromkeys(model_classes.RUNS, "=")}
    refused = f"`ValueError: Gemma4AudioModel {model_classes.REFUSED}`"
    assert model_classes.known(right | {"bare reentrant": refused}) == "refused"
    assert model_classes.known(right | {"bare reentrant": refused, "bare off": "1e+00 off"}) == "F52"


def test_what_trains_another_function_by_design_may_have_a_failure_beside_it() -> None:
    right = {"family": "autoformer", **dict.fromkeys(model_classes.RUNS, "=")}
    assert model_classes.known(right | dict.fromkeys(model_classes.RUNS, "7e-01 off")) == "design"
    beside = {"bare off": "7e-01 off", "bare reentrant": "47 without a gradient"}
    assert model_classes.known(right | beside) == "F65"


def test_no_class_on_record_lacks_a_reason() -> None:
    unmade_ones = [
        (stack, name, about["not made"])
        for stack, kinds in model_classes.read().items()
        for name, about in kinds.items()
        if about["not made"]
    ]
    assert unmade_ones
    unseen = [(stack, name) for stack, name, reason in unmade_ones if not unmade.why(name, reason)]
    assert not unseen, "make them, or say in unmade.toml why they cannot be"


def test_the_whole_of_a_part_that_is_not_made_is_made() -> None:
    for stack, kinds in model_classes.read().items():
        wholes = [about["not made"] for about in kinds.values() if about["not made"].startswith(unmade.PART)]
        assert wholes, stack
        assert not [whole for whole in wholes if kinds[whole.removeprefix(unmade.PART)]["not made"]], stack


def test_every_class_that_is_made_was_run_on_both_sides() -> None:
    unrun = [
        (stack, name)
        for stack, kinds in model_classes.read().items()
        for name, about in kinds.items()
        if not about["not made"] and not all(about[run] for run in model_classes.RUNS)
    ]
    assert not unrun, "python -m tests.families STACK --missing"


def test_what_was_looked_at_is_what_the_record_says() -> None:
    reasons = [
        (name, about["not made"]) for kinds in model_classes.read().values() for name, about in kinds.items()
    ]
    for looked in unmade.entries().values():
        for kind in looked.classes:
            assert any(kind == name and looked.says in reason for name, reason in reasons), kind


def test_one_side_alone_that_cannot_make_a_class_is_wrong() -> None:
    found: model_classes.Found = {}
    right = dict.fromkeys(modes.MODES, "=")
    made = {"class": "A", "module": "a", **right}
    failed = {"class": "A", "module": "a", "not made": "ended with -9"}
    model_classes.merge(found, "stack", "bare", [made])
    assert model_classes.has_run(found["stack"]["A"], "bare")
    assert not model_classes.has_run(found["stack"]["A"], "patched")
    model_classes.merge(found, "stack", "patched", [failed])
    assert model_classes.harmed(found["stack"]["A"])
    model_classes.merge(found, "stack", "patched", [made])
    assert not model_classes.differs(found["stack"]["A"])
    model_classes.merge(found, "stack", "bare", [failed])
    assert found["stack"]["A"]["not made"]


def test_the_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    copy = tmp_path / "copy.csv"
    model_classes.save(model_classes.read(), copy)
    assert copy.read_bytes() == model_classes.STORE.read_bytes()


def test_vlmpatch_makes_nothing_wrong() -> None:
    assert any(about["patched off"] for about in recorded())
    assert not [about for about in recorded() if model_classes.harmed(about)]


def test_what_goes_wrong_with_vlmpatch_alone_is_harm() -> None:
    right = dict.fromkeys(model_classes.RUNS, "=")
    assert not model_classes.harmed(right)
    assert not model_classes.harmed(right | {"bare off": "1e-01 off", "patched off": "1e-01 off"})
    assert model_classes.harmed(right | {"patched reentrant": "1e-01 off"})
    wrong = {"bare nonreentrant": "1e-01 off", "patched nonreentrant": "1e-01 off"}
    assert model_classes.harmed(right | wrong), "it is the default now, and was not"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_differs_is_on_the_page(language: str) -> None:
    page = model_classes.shown(language)
    assert "Gemma3nTextModel" in page
    assert "LlamaModel" not in page
