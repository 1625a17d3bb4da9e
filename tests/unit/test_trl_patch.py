"""TRL's trainers: who chooses ``use_reentrant``, which ranks gather images, where prompts are padded."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import vlmpatch
from vlmpatch import api
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


IMAGE = object()
Gathered = list[list[Any]]


@pytest.fixture
def scoring() -> ModuleType:
    """A trainer that gathers what it is shown, beside a rank with an image."""
    module = ModuleType("trl.trainer.grpo_trainer")
    module.gathered = []  # type: ignore[attr-defined]

    def gather_object(every: Gathered) -> Gathered:
        module.gathered.append(every)
        return [*every, *module.elsewhere]

    class GRPOTrainer:
        def __init__(self, use_vllm: bool = False) -> None:
            self.use_vllm = use_vllm
            self.of_tools: Gathered | None = None
            self._logs: dict[str, list[Any]] = {"images": []}

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            images = [row["images"] for row in inputs] if "images" in inputs[0] else None
            if images is not None and all(each == [] for each in images):
                images = None
            images = images or self.of_tools
            if images is None:
                return {"advantages": 1}
            if getattr(self, "log_multimodal", True):
                self._logs["images"].extend(gather_object(images))
            return {"advantages": 1, "num_images": [len(each) for each in images]}

    module.gather_object = gather_object  # type: ignore[attr-defined]
    module.elsewhere = [[IMAGE]]  # type: ignore[attr-defined]
    module.GRPOTrainer = GRPOTrainer  # type: ignore[attr-defined]
    importlib.import_module("vlmpatch.patches.trl.trl_images_of_every_rank").apply(
        Patch("p", Journal()), module
    )
    return module


@pytest.mark.parametrize("images", [[IMAGE], []])
def test_a_rank_gathers_images_once_whether_it_has_one_or_not(
    scoring: ModuleType, images: list[object]
) -> None:
    trainer = scoring.GRPOTrainer()
    assert trainer._generate_and_score_completions([{"images": images}])["advantages"] == 1
    assert scoring.gathered == [[images]]
    assert trainer._logs["images"] == [images, [IMAGE]]


def test_where_no_rank_has_an_image_the_log_has_none(scoring: ModuleType) -> None:
    scoring.elsewhere = [[]]  # type: ignore[attr-defined]
    trainer = scoring.GRPOTrainer()
    trainer._generate_and_score_completions(inputs=[{"images": []}, {"images": []}])
    assert scoring.gathered == [[[], []]]
    assert trainer._logs["images"] == []


def test_images_that_tools_return_are_gathered_once(scoring: ModuleType) -> None:
    trainer = scoring.GRPOTrainer()
    trainer.of_tools = [[IMAGE]]
    trainer._generate_and_score_completions([{"images": []}])
    assert scoring.gathered == [[[IMAGE]]]


@pytest.mark.parametrize("said", ["texts", "vllm", "unlogged"])
def test_what_gathers_no_images_is_left_alone(scoring: ModuleType, said: str) -> None:
    trainer = scoring.GRPOTrainer(use_vllm=said == "vllm")
    trainer.log_multimodal = said != "unlogged"
    trainer._generate_and_score_completions([{} if said == "texts" else {"images": []}])
    assert scoring.gathered == []


ASKING = """
class GRPOTrainer:
    def __init__(self, processing_class):
        self.processing_class, self.seen = processing_class, []

    def see(self, what):
        tokenizer = getattr(self.processing_class, "tokenizer", None)
        self.seen.append((what, getattr(tokenizer, "padding_side", "")))

    def _generate(self, prompts):
        self.see("rollout")

    def _calculate_rewards(self, inputs):
        self.see("reward")
        if inputs == "fails":
            raise RuntimeError("a reward")

    def _generate_and_score_completions(self, inputs):
        self._generate(inputs)
        prompts_text = inputs
        self.processing_class(self, text=prompts_text, padding=True, return_tensors="pt")
        self._calculate_rewards(inputs)
        return inputs
"""


class Processor:
    """Says which side it was asked to pad on."""

    def __init__(self, side: str) -> None:
        self.tokenizer = SimpleNamespace(padding_side=side)

    def __call__(self, trainer: Any, **said: Any) -> None:
        trainer.see("prompts")


@pytest.fixture
def asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A trainer that asks for prompts without a side, in a file of its own: the patch reads it."""
    (tmp_path / "asking_trainer.py").write_text(ASKING)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("asking_trainer")
    monkeypatch.delitem(sys.modules, "asking_trainer")
    patch: Any = importlib.import_module("vlmpatch.patches.trl.trl_token_types_padded_left")
    assert patch.look(api.of_module(module)) is None
    patch.apply(Patch("p", Journal()), module)
    return module.GRPOTrainer


def test_prompts_are_padded_left_and_the_rest_as_the_caller_says(asking: Any) -> None:
    trainer = asking(Processor("right"))
    assert trainer._generate_and_score_completions("rows") == "rows"
    assert trainer.seen == [("rollout", "right"), ("prompts", "left"), ("reward", "right")]
    assert trainer.processing_class.tokenizer.padding_side == "right"
    trainer._calculate_rewards("rows")
    assert trainer.seen[-1] == ("reward", "right")


def test_the_side_comes_back_after_an_error(asking: Any) -> None:
    trainer = asking(Processor("right"))
    with pytest.raises(RuntimeError, match="a reward"):
        trainer._generate_and_score_completions("fails")
    assert trainer.processing_class.tokenizer.padding_side == "right"
    trainer._generate(())
    assert trainer.seen[-1] == ("rollout", "right")


def test_a_processor_of_the_left_is_left_alone(asking: Any) -> None:
    trainer = asking(Processor("left"))
    trainer._generate_and_score_completions("rows")
    assert {side for _, side in trainer.seen} == {"left"}


def test_a_tokenizer_is_left_alone(asking: Any) -> None:
    trainer = asking(lambda *args, **said: None)
    assert trainer._generate_and_score_completions("rows") == "rows"
    assert {side for _, side in trainer.seen} == {""}
