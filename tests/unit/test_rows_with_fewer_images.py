"""Which images of a batch a token of Mllama's is kept from, and which rows a layer passes over."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import pytest

from vlmpatch import api

mllama: Any = importlib.import_module("vlmpatch.patches.transformers.rows_with_fewer_images")
SOURCE = """
def _prepare_cross_attention_mask(cross_attention_mask, num_vision_tokens, dtype):
    cross_attention_mask *= full_text_row_masked_out_mask
    return cross_attention_mask, full_text_row_masked_out_mask

class MllamaCrossAttentionDecoderLayer:
    def forward(self, hidden_states, states, mask, attention_mask, full_text_row_masked_out_mask):
        hidden_states = residual + hidden_states
        hidden_states = full_text_row_masked_out_mask[:, 0] * hidden_states
        return residual + hidden_states

class {model}:
    def forward(self, input_ids, pixel_values, aspect_ratio_mask, aspect_ratio_ids, mask):
        return _prepare_cross_attention_mask(mask, 1, None)
"""


def look(source: str) -> Any:
    return mllama.look(api.Code("transformers.models.mllama.modeling_mllama", "modeling.py", source))


@pytest.mark.parametrize("model", mllama.MODELS)
def test_the_bug_is_known(model: str) -> None:
    assert look(SOURCE.replace("{model}", model)) is None


SEEN_TO = "a token that may look at no image keeps nothing of one"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    cross_attention_mask *= full_text_row_masked_out_mask\n", ""),
        ("= residual + hidden_states", f"= {mllama.LOOKS.name}[:, 0] * hidden_states"),
    ],
)
def test_what_was_put_right_upstream_is_left_alone(old: str, new: str) -> None:
    source = SOURCE.replace("{model}", "MllamaModel")
    assert old in source
    assert look(source.replace(old, new)) == SEEN_TO


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("def _prepare", "def _make", "has no _prepare_cross_attention_mask"),
        ("class MllamaModel", "class Other", "has no _prepare_cross_attention_mask"),
        ("aspect_ratio_ids, mask", "mask, aspect_ratio_ids", "prepares masks"),
        ("return _prepare_cross_attention_mask(", "return prepared(", "prepares masks"),
        ("self, hidden_states, states", "self, states, hidden_states", "is called"),
    ],
)
def test_what_is_not_known_is_declined(old: str, new: str, why: str) -> None:
    source = SOURCE.replace("{model}", "MllamaModel")
    assert old in source
    with pytest.raises(api.Unrecognised, match=why):
        look(source.replace(old, new))


class Patch:
    """Keeps what it is given to wrap."""

    def __init__(self) -> None:
        self.wrappers: dict[tuple[str, str], Any] = {}

    def wrap(self, owner: Any, name: str, wrapper: Any) -> None:
        self.wrappers[owner.__name__, name] = wrapper


class Grid:
    """Stands for a tensor of rows and images."""

    device = "cpu"

    def __init__(self, *rows: list[int]) -> None:
        self.rows, self.shape = rows, (len(rows), len(rows[0]))

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: object) -> Any:
        return Grid(*([int(each == other) for each in row] for row in self.rows))

    __hash__ = object.__hash__

    def __invert__(self) -> Grid:
        return Grid(*([1 - each for each in row] for row in self.rows))

    def __and__(self, other: Grid) -> Grid:
        pairs = zip(self.rows, other.rows, strict=True)
        return Grid(*([a & b for a, b in zip(*pair, strict=True)] for pair in pairs))

    def any(self) -> bool:
        return any(map(any, self.rows))

    def to(self, device: str) -> Grid:
        return self


class Asked:
    """Stands for what a caller says of rows, tokens, images and tiles: which images are looked at."""

    def __init__(self, looked_at: Grid) -> None:
        self.looked_at = looked_at
        self.shape = (len(looked_at), 5, looked_at.shape[1], 2)

    def bool(self) -> Asked:
        return self

    def any(self, dim: int) -> Any:
        return {3: self, 1: self.looked_at}[dim]


class Mask:
    device = "cpu"


@pytest.fixture
def wrappers(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], Any]:
    torch: Any = types.ModuleType("torch")
    torch.compiler = types.SimpleNamespace(is_compiling=lambda: torch.compiles)
    torch.compiles = False
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(mllama, "readable", lambda tensor: tensor is not UNREADABLE)
    module: Any = types.ModuleType("modeling_mllama")
    for name in ("MllamaModel", mllama.LAYER):
        setattr(module, name, type(name, (), {}))
    patch = Patch()
    mllama.apply(patch, module)
    return patch.wrappers


UNREADABLE = Grid([1, 0], [1, 1])
LOOKED_AT = Grid([1, 1], [1, 0])
SAID: dict[str, Any] = {"pixel_values": object(), "aspect_ratio_ids": Grid([2, 2], [2, 0])}


def told(wrappers: dict[tuple[str, str], Any], looked_at: Grid = LOOKED_AT, **said: Any) -> Any:
    """Which images a mask is made for inside of the model's forward, if any is looked for."""
    found: list[Any] = []
    prepare = wrappers["modeling_mllama", mllama.PREPARE]
    made = (Mask(), object())

    def makes(asked: Asked) -> Any:
        return made

    def forward(self: object, **kwargs: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mllama, "kept_apart", lambda mask, looks, blank: found.append(blank.rows))
            if not found:
                prepare(makes, Asked(looked_at))

    wrappers["MllamaModel", "forward"](forward, None, **said)
    assert prepare(makes, Asked(looked_at)) is not None  # after it, nothing is known any more
    return found[0] if found else None


def test_masks_are_made_for_the_images_of_the_forward_that_runs(wrappers: dict[tuple[str, str], Any]) -> None:
    assert told(wrappers, **SAID) == ([0, 0], [0, 1])
    assert told(wrappers, **SAID | {"pixel_values": None}) is None
    assert told(wrappers, **SAID | {"aspect_ratio_ids": None}) is None
    assert told(wrappers, **SAID | {"aspect_ratio_ids": Grid([2, 0])}) is None  # a row by itself
    assert told(wrappers, **SAID | {"aspect_ratio_ids": Grid([2, 0], [2, 0], [2, 0])}) is None  # other rows
    assert told(wrappers, **SAID | {"aspect_ratio_ids": Grid([2, 1], [2, 1])}) is None  # nothing filled up
    assert told(wrappers, **SAID | {"aspect_ratio_ids": UNREADABLE}) is None
    sys.modules["torch"].compiles = True  # type: ignore[attr-defined]
    assert told(wrappers, **SAID) is None


def test_an_image_that_tokens_look_at_is_there(wrappers: dict[tuple[str, str], Any]) -> None:
    assert told(wrappers, Grid([1, 1], [1, 1]), **SAID) == ([0, 0], [0, 0])


def test_a_layer_hands_on_what_it_need_not_look_at(wrappers: dict[tuple[str, str], Any]) -> None:
    layer = wrappers[mllama.LAYER, "forward"]
    made = object()
    for looks in (None, types.SimpleNamespace(shape=(2, 1, 5, 1))):
        assert layer(lambda *args: made, None, object(), None, None, None, looks) is made


def test_what_a_layer_returns_beside_is_handed_on(
    wrappers: dict[tuple[str, str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mllama, "left_out", lambda found, hidden, looks: (found, hidden, looks))
    looks, hidden, cache = types.SimpleNamespace(shape=(2, 2, 5, 1)), object(), object()
    layer = wrappers[mllama.LAYER, "forward"]
    said = {"hidden_states": hidden, "full_text_row_masked_out_mask": looks}
    assert layer(lambda self, **kwargs: ("made", cache), None, **said) == (("made", hidden, looks), cache)
    assert layer(lambda self, **kwargs: "made", None, **said) == ("made", hidden, looks)
