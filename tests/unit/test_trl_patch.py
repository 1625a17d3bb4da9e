"""trl-forced-reentrant guards the user's choice while a trainer is made, and no longer."""

from __future__ import annotations

import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import vlmpatch
from vlmpatch.api import Patch
from vlmpatch.journal.journal import Journal


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> type:
    monkeypatch.setattr(vlmpatch, "require", lambda *ids: None)
    module = ModuleType("trl.trainer.sft_trainer")

    class SFTTrainer:
        def __init__(self, args: Any, fail: bool = False) -> None:
            args.gradient_checkpointing_kwargs = args.gradient_checkpointing_kwargs or {}
            args.gradient_checkpointing_kwargs["use_reentrant"] = True
            if fail:
                raise RuntimeError("no such model")

    SFTTrainer.__module__ = module.__name__
    module.SFTTrainer = SFTTrainer  # type: ignore[attr-defined]
    importlib.import_module("vlmpatch.patches.trl.trl_forced_reentrant").apply(Patch("p", Journal()), module)
    return SFTTrainer


@pytest.mark.parametrize("said", [None, {"use_reentrant": False}, {"preserve_rng_state": False}])
def test_the_choice_stands(trainer: type, said: dict[str, bool] | None) -> None:
    args = SimpleNamespace(gradient_checkpointing_kwargs=said)
    trainer(args)
    assert args.gradient_checkpointing_kwargs == {**(said or {}), "use_reentrant": False}
    assert type(args.gradient_checkpointing_kwargs) is dict


def test_a_constructor_that_raises_leaves_no_guard(trainer: type) -> None:
    said = {"preserve_rng_state": False}
    args = SimpleNamespace(gradient_checkpointing_kwargs=said)
    with pytest.raises(RuntimeError, match="no such model"):
        trainer(args, fail=True)
    assert args.gradient_checkpointing_kwargs is said
    assert said == {"preserve_rng_state": False}


def test_a_name_that_the_constructor_lacks_reaches_it(trainer: type) -> None:
    """It may be a layer below that takes the name, as trainer-tokenizer-argument does."""
    given = SimpleNamespace(gradient_checkpointing_kwargs=None)
    with pytest.raises(TypeError, match=r"__init__\(\) got an unexpected keyword argument 'tokenizer'"):
        trainer(args=given, tokenizer="of 2024")
    with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional argument"):
        trainer()
