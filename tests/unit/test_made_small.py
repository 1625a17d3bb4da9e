"""Small models of any class: what needs no torch."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tests.lab.made_small import singles, unmade
from tests.lab.made_small.configurations import _is_derived, _within, shrunk
from tests.lab.made_small.making import _amended, is_known
from tests.lab.made_small.narrowed import narrowed
from tests.lab.made_small.trying import _builds


class Config:
    """As transformers': what the class says is there, and what is said takes its place."""

    attribute_map: ClassVar[dict[str, str]] = {}
    own: ClassVar[dict[str, Any]] = {}

    def __init__(self, **said: Any) -> None:
        vars(self).update(type(self).own | said)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class Part:
    pass


class Neck:
    def __init__(self) -> None:
        self.parts = [Part(), None]


class Whole:
    def __init__(self) -> None:
        self.neck = Neck()


class Hybrid(Config):
    own: ClassVar[dict[str, Any]] = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 8,
        "layer_types": ["mamba"] * 6 + ["attention"] * 2,
        "full_layers": [6, 7],
        "vocab_size": 65_536,
        "image_token_id": 65_000,
        "pad_token_id": 0,
        "patch_size": 256,
        "hidden_sizes": [256, 512],
        "depths": [2, 9],
        "base_channels": 128,
        "attention_dropout": 0.1,
        "num_experts": None,
    }


def test_a_class_keeps_its_proportions_and_a_layer_of_each_kind() -> None:
    found = narrowed(Hybrid(), 16, {})
    assert (found.hidden_size, found.num_attention_heads) == (256, 32)
    assert found.layer_types == ["mamba"] * 3 + ["attention"]
    assert (found.num_hidden_layers, found.full_layers) == (4, [3])
    assert (found.hidden_sizes, found.depths) == ([16, 32], [2, 2])
    assert (found.vocab_size, found.patch_size, found.base_channels) == (512, 256, 32)
    assert found.pad_token_id == 0 < found.image_token_id < found.vocab_size
    assert (found.attention_dropout, found.num_experts) == (0.0, 4)


def test_what_a_class_derives_is_not_said() -> None:
    class Derives(Config):
        attribute_map: ClassVar[dict[str, str]] = {"layer_types": "kinds"}
        own: ClassVar[dict[str, Any]] = {"hidden_size": 4096}
        kinds = property(lambda self: ["full_attention"])

    assert shrunk(Derives(), {"hidden_size": 64, "layer_types": ["a"]}, {}).hidden_size == 64
    assert _is_derived(Derives(), "layer_types")
    assert not _is_derived(Derives(), "hidden_size")


def test_layers_that_are_named_are_those_that_are_there() -> None:
    assert _within([24, 18]) == [0, 1]
    assert _within((11,)) == (1,)
    assert [_within(layer) for layer in (-2, 0, 11, None)] == [-2, 0, 1, None]


def test_what_one_family_needs_is_said_to_it_and_to_its_parts() -> None:
    class Whole(Config):
        own: ClassVar[dict[str, Any]] = {"width": 4096, "part": Config(width=4096), "none": None}

    needed = {"width": 7, "part": {"width": 9}, "none": {"width": 5}}
    for found in (shrunk(Whole(), {"width": 64}, needed), narrowed(Whole(), 16, needed)):
        assert (found.width, found.part["width"], found.none) == (7, 9, {"width": 5})


def test_what_single_families_need_is_in_the_order_of_the_alphabet() -> None:
    for known in (singles.SIZES, singles.INPUTS, singles.PARTS):
        assert [*known] == sorted(known, key=str.lower)
    assert [*unmade.entries()] == sorted(unmade.entries())


def test_a_package_that_a_stack_has_not_is_seen_in_the_error() -> None:
    told = "ImportError: TimmBackbone requires the timm library but it was not found in your environment."
    assert unmade.package(told) == "timm"
    assert unmade.package("ModuleNotFoundError: No module named 'scipy.optimize'") == "scipy"
    assert not unmade.package("ValueError: 9 parameters are left")


def test_what_a_configuration_lacks_is_taken_from_another() -> None:
    class Part(Config):
        pass

    class Whole(Config):
        own: ClassVar[dict[str, Any]] = {"vocab_size": 90, "part": Part()}

    missing: dict[tuple[type, str], Any] = {}
    with pytest.raises(AttributeError) as raised:
        _ = Part().vocab_size  # type: ignore[attr-defined]
    assert is_known(raised.value, Whole, missing)
    assert _amended(Whole, missing).part.vocab_size == 128
    with pytest.raises(AttributeError) as unheard:
        _ = Part().unheard_of  # type: ignore[attr-defined]
    assert not is_known(unheard.value, Whole, missing)


def test_what_is_made_by_a_part_is_a_part_of_the_whole() -> None:
    assert _builds(Neck, Part)
    assert _builds(Whole, Part)
    assert not _builds(Part, Whole)
