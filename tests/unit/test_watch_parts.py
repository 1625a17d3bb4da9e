"""Which part of a model a name belongs to, and what the watch makes of parts that are frozen."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmpatch.watch import parts, refrozen, untrained
from vlmpatch.watch.calls import Calls, unreached
from vlmpatch.watch.parts import AUDIO, HEAD, LANGUAGE, PROJECTOR, TOWER

PEFT = "base_model.model."
NAMES = {
    "visual.blocks.0.attn.qkv.weight": TOWER,
    "model.visual.merger.mlp.0.weight": PROJECTOR,
    "visual.deepstack_merger_list.0.norm.weight": PROJECTOR,
    "vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight": TOWER,
    "model.multi_modal_projector.linear_1.weight": PROJECTOR,
    "model.mm_projector.0.weight": PROJECTOR,
    "model.vision_tower.vision_model.head.attention.in_proj_weight": TOWER,
    "vpm.encoder.layers.0.self_attn.q_proj.weight": TOWER,
    "resampler.kv_proj.weight": PROJECTOR,
    "vision_model.encoder.layers.0.attn.qkv.weight": TOWER,
    "mlp1.1.weight": PROJECTOR,
    "model.connector.modality_projection.proj.weight": PROJECTOR,
    "thinker.audio_tower.layers.0.fc1.weight": AUDIO,
    "model.embed_vision.embedding_projection.weight": PROJECTOR,
    "model.vision_embed_tokens.img_processor.vision_model.post_layernorm.weight": TOWER,
    "model.vision_embed_tokens.img_projection.0.weight": PROJECTOR,
    "llm.model.layers.0.mlp.down_proj.weight": LANGUAGE,
    "model.language_model.layers.3.cross_attn.q_proj.weight": LANGUAGE,
    "model.embed_tokens.weight": LANGUAGE,
    "lm_head.weight": HEAD,
    "score.weight": HEAD,
}


@pytest.mark.parametrize(("name", "part"), NAMES.items())
def test_the_part_that_a_name_belongs_to(name: str, part: str) -> None:
    assert parts.part_of(name) == parts.part_of(PEFT + name) == part
    adapter = PEFT + name.removesuffix(".weight") + ".lora_A.default.weight"
    assert parts.part_of(adapter) == part
    assert parts.is_adapter(adapter)
    assert not parts.is_adapter(name)


class Model:
    """What has named parameters; ``+`` before a name says that it is trained."""

    def __init__(self, *names: str, numel: int = 1, **attributes: Any) -> None:
        self.named = {name.lstrip("+"): Parameter(name.startswith("+"), numel) for name in names}
        vars(self).update(attributes)

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        return iter(self.named.items())


class Parameter:
    def __init__(self, trained: bool, numel: int) -> None:
        self.requires_grad, self.size = trained, numel

    def numel(self) -> int:
        return self.size


def adapter(name: str, called: str = "default") -> str:
    return f"{PEFT}{name}.lora_B.{called}.weight"


def found(model: Model, history: Any = None) -> list[str]:
    return [each.what for each in untrained.untrained(model, parts.parts(model), history)]


def test_every_part_is_counted() -> None:
    model = Model(
        "visual.a", "visual.b", "+visual.merger.a", "layers.0.a", "+" + adapter("layers.0"), "lm_head.a"
    )
    assert parts.counted(parts.parts(model)) == (
        "vision tower 0 trained, 2 frozen; projector 1 trained, 0 frozen; language model 1 trained, 1 "
        "frozen; head 0 trained, 1 frozen; 1 of the trained are adapters'"
    )
    assert parts.counted(parts.parts(Model("+layers.0.a"))) == "language model 1 trained, 0 frozen"


def test_an_adapter_that_is_frozen_in_one_part_alone() -> None:
    assert found(Model(adapter("visual.q"), "+" + adapter("layers.q"))) == [
        "1 parameters of the adapter in the vision tower are frozen, all of them"
    ]
    # A reference model's adapter is frozen everywhere; where some of a part is trained, it was chosen.
    assert found(Model(adapter("visual.q", "reference"), "+" + adapter("layers.q"))) == []
    assert found(Model(adapter("visual.q"), "+" + adapter("visual.k"), "+" + adapter("layers.q"))) == []
    assert found(Model("visual.q", "+" + adapter("layers.q"))) == []


@pytest.mark.parametrize(
    ("targets", "excluded", "said"),
    [
        (
            ["q_proj", "visual.*qkv"],
            None,
            ["the LoRA's target 'visual.*qkv' names the vision tower, of which"],
        ),
        (r"visual\..*\.qqkv", None, ["the LoRA's target 'visual\\\\..*\\\\.qqkv' names the vision tower"]),
        (["q_proj", "v_proj"], None, []),
        (r"^(?!.*visual).*(q_proj|v_proj)$", None, []),
        (["q_proj", "visual.blocks.0.attn.qkv"], ["visual"], []),
        (None, None, []),
    ],
)
def test_targets_that_name_a_part_of_which_nothing_is_trained(
    targets: Any, excluded: Any, said: list[str]
) -> None:
    config = SimpleNamespace(target_modules=targets, exclude_modules=excluded)
    model = Model("visual.qkv.a", "+" + adapter("layers.q_proj"), peft_config={"default": config})
    assert len(found(model)) == len(said)
    assert all(text.startswith(start) for text, start in zip(found(model), said, strict=True))
    trained = Model("+visual.merger.a", "+" + adapter("visual.qkv"), peft_config={"default": config})
    assert found(trained) == []


@given(st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=4))
def test_any_configuration_is_read(targets: Any) -> None:
    config = SimpleNamespace(target_modules=targets)
    if targets is None or isinstance(targets, str | list):
        found(Model("visual.a", peft_config={"default": config}))
    found(Model("visual.a", peft_config=targets))


def after_peft(model: Model, *trained: str) -> tuple[Model, refrozen.History]:
    """PEFT freezes everything, and adds ``trained``."""
    history = refrozen.History()
    chosen = refrozen.chosen(model)
    wrapped = Model(*(f"+{PEFT}{name}" for name in trained))
    for name, parameter in model.named.items():
        parameter.requires_grad = False
        wrapped.named[PEFT + name] = parameter
    history.keep(wrapped, chosen)
    return wrapped, history


FROZEN = tuple(f"layers.{number}.a" for number in range(9))


def test_what_was_chosen_and_is_frozen_again() -> None:
    wrapped, history = after_peft(Model(*FROZEN, "+visual.merger.a"), "layers.0.lora_A.default.weight")
    assert found(wrapped, history) == [
        "get_peft_model froze 1 parameters again that had been chosen to be trained"
    ]
    assert found(Model(), history) == []  # another model


@pytest.mark.parametrize(
    ("before", "trained"),
    [
        ((*FROZEN, "+visual.merger.a"), "visual.merger.modules_to_save.default.a"),
        ((*FROZEN, "+visual.merger.a"), "visual.merger.lora_A.default.weight"),
        (tuple(f"+{name}" for name in FROZEN), "layers.0.lora_A.default.weight"),  # as it was loaded
        (("visual.a", *(f"+{name}" for name in FROZEN)), "layers.0.lora_A.default.weight"),  # the tower alone
    ],
)
def test_what_is_trained_in_its_place_or_was_never_chosen(before: tuple[str, ...], trained: str) -> None:
    assert found(*after_peft(Model(*before), trained)) == []


def test_a_model_that_is_gone_is_forgotten() -> None:
    wrapped, history = after_peft(Model(*FROZEN, "+visual.merger.a"), "layers.0.lora_A.default.weight")
    assert len(history._chosen) == 1
    del wrapped
    assert len(history._chosen) == 0


def test_parts_that_have_no_gradient_yet() -> None:
    model = Model("+visual.a", "+visual.b", "visual.merger.a", "+layers.0.a", "+lm_head.a")
    split = parts.parts(model)
    assert set(unreached(split, {"lm_head.a": True})) == {TOWER}
    assert set(unreached(split, {"lm_head.a": True, "visual.b": True})) == set()


@pytest.mark.parametrize(
    ("outside", "inside", "checkpointing", "cause"),
    [
        ({False}, {False}, True, "runs under torch.no_grad()"),
        ({True}, {False}, False, "runs under torch.no_grad()"),
        ({True}, {False}, True, ""),  # reentrant checkpointing does so
        ({True}, {True}, False, ""),
        ({True}, set(), False, ""),
        (set(), set(), False, "was never called"),
    ],
)
def test_the_cause_that_calls_show(
    outside: set[bool], inside: set[bool], checkpointing: bool, cause: str
) -> None:
    calls = Calls.__new__(Calls)
    calls._outside, calls._inside = {TOWER: outside}, {TOWER: inside}
    assert calls.cause([LANGUAGE], checkpointing) == ""
    said = calls.cause([TOWER, LANGUAGE], checkpointing)
    assert cause in said
    assert bool(said) == bool(cause)
