"""Model classes in four modes: what is on file is whole, and every difference is spoken for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import model_classes


def test_every_difference_is_spoken_for() -> None:
    every = [about for kinds in model_classes.read().values() for about in kinds.values()]
    assert every
    unknown = {about["family"] for about in every if model_classes.differs(about)} - {*model_classes.KNOWN}
    assert not unknown, "look into them, and say so in KNOWN"


def test_the_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    copy = tmp_path / "copy.csv"
    model_classes.save(model_classes.read(), copy)
    assert copy.read_bytes() == model_classes.STORE.read_bytes()


def test_vlmpatch_makes_nothing_wrong() -> None:
    every = [about for kinds in model_classes.read().values() for about in kinds.values()]
    assert any(about["patched off"] for about in every)
    assert not [about for about in every if model_classes.harmed(about)]


def test_what_goes_wrong_with_vlmpatch_alone_is_harm() -> None:
    right = dict.fromkeys(model_classes.RUNS, "=")
    assert not model_classes.harmed(right)
    assert not model_classes.harmed(right | {"bare off": "1e-01 off", "patched off": "1e-01 off"})
    assert model_classes.harmed(right | {"patched reentrant": "1e-01 off"})


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_differs_is_on_the_page(language: str) -> None:
    page = model_classes.shown(language)
    assert "Gemma3nTextModel" in page
    assert "LlamaModel" not in page
