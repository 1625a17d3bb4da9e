"""Packed rows in layers of linear attention: forms of these layers, and what is called for each text."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from vlmpatch import api

linear: Any = importlib.import_module("vlmpatch.patches.transformers.packed_rows_in_linear_layers")
earlier: Any = importlib.import_module("vlmpatch.patches.transformers.packed_rows_in_earlier_linear_layers")
texts_of_rows: Any = importlib.import_module("vlmpatch.patches._shared.texts_of_rows")
MODULE = "transformers.models.qwen3_5.modeling_qwen3_5"
SOURCE = """
def causal_conv1d_fn(hidden_states, weight, bias=None, activation=None, **kwargs):
    pass

class {kind}:
    def forward(self, hidden_states, position_embeddings, attention_mask=None, {positions}=None):
        pass

class Model:
    def forward(self, **mask_kwargs):
        return create_recurrent_attention_mask(**mask_kwargs)
"""


def look(kind: str, module: str, positions: str = "position_ids", source: str = SOURCE) -> Any:
    code = source.format(kind=kind, positions=positions)
    return linear.look(api.Code(f"transformers.models.{module}.modeling_{module}", "modeling.py", code))


@pytest.mark.parametrize(("module", "kind"), texts_of_rows.LAYERS.items())
def test_the_bug_is_known_in_each_model(module: str, kind: str) -> None:
    assert look(kind, module) is None


def test_layers_of_earlier_releases_are_left_alone() -> None:
    before = SOURCE[SOURCE.index("class") :]
    said = "layers hold their convolution themselves"
    assert look("Qwen3_5DecoderLayer", "qwen3_5", source=before) == said


def test_other_layers_are_no_form_that_is_known() -> None:
    with pytest.raises(api.Unrecognised, match="has no"):
        look("Other", "qwen3_5")
    with pytest.raises(api.Unrecognised, match="told of positions in another way"):
        look("Qwen3_5DecoderLayer", "qwen3_5", positions="places")
    with pytest.raises(api.Unrecognised, match="told of positions in another way"):
        look("Qwen3_5DecoderLayer", "qwen3_5", source=SOURCE.replace(linear.MASKED, "masks_of"))


class Rows:
    """What torch's tensors do here: rows of numbers, of shape [rows, length]."""

    def __init__(self, *rows: list[int], device: str = "cpu") -> None:
        self.rows, self.device = rows, device

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.rows[0])

    def __getitem__(self, some: slice) -> Rows:
        return Rows(*self.rows[some])

    def narrow(self, along: int, begin: int, length: int) -> Rows:
        assert along in (1, -1)
        return Rows(*(row[begin : begin + length] for row in self.rows))

    def tolist(self) -> list[list[int]]:
        return [*self.rows]


def cat(tensors: list[Rows], along: int = 0) -> Rows:
    if along == 0:
        return Rows(*(row for tensor in tensors for row in tensor.rows))
    return Rows(
        *([*itertools.chain(*rows)] for rows in zip(*(tensor.rows for tensor in tensors), strict=True))
    )


class Layer:
    """As Qwen3.5 has it."""

    def forward(
        self,
        hidden_states: Any,
        position_embeddings: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> Any: ...


def convolve(x: Any, weight: Any, bias: Any = None, activation: Any = None, **kwargs: Any) -> Any:
    """Every number and all before it, so that a result tells where its row began."""
    rows = [[sum(row[: place + 1]) for place in range(len(row))] for row in x.rows]
    assert "seq_idx" not in kwargs, "a convolution without a kernel takes no boundaries"
    return Rows(*rows)


def rule(
    query: Any, key: Any, value: Any, g: Any, beta: Any, initial_state: Any = None, **kwargs: Any
) -> tuple[Any, Any]:
    assert query.shape == key.shape == value.shape == g.shape == beta.shape
    return convolve(query, None), Rows(*([sum(row)] for row in query.rows))


class World:
    """What the patch asks of torch, and of what is installed."""

    compiled = traced = False
    recorded = True
    installed: tuple[str, ...] = ()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> type[World]:
    for name, value in {"compiled": False, "traced": False, "recorded": True, "installed": ()}.items():
        monkeypatch.setattr(World, name, value)
    torch: Any = types.ModuleType("torch")
    torch.compiler = types.SimpleNamespace(is_compiling=lambda: World.compiled)
    torch.jit = types.SimpleNamespace(is_tracing=lambda: World.traced)
    torch.is_grad_enabled = lambda: World.recorded
    torch.cat = cat
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(texts_of_rows, "_is_there", lambda package: package in World.installed)
    monkeypatch.setattr(texts_of_rows, "begin_again", lambda positions: positions.rows[0].count(0) > 1)
    monkeypatch.setattr(texts_of_rows, "readable", lambda tensor: isinstance(tensor, Rows))
    return World


@pytest.fixture
def layer(world: type[World]) -> Any:
    """A layer that calls both functions: what it made of numbers, by how it was called."""
    module: Any = types.SimpleNamespace(__name__=MODULE, Qwen3_5DecoderLayer=Layer)
    module.causal_conv1d_fn, module.torch_chunk_gated_delta_rule = convolve, rule
    module.create_recurrent_attention_mask = lambda **kwargs: None
    wrappers: dict[str, Any] = {}
    patch: Any = types.SimpleNamespace(wrap=lambda owner, name, wrapper: wrappers.update({name: wrapper}))
    linear.apply(patch, module)

    def inside(self: Any, hidden: Any, *args: Any, said: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        state = kwargs.pop("state", None)
        conv = wrappers[linear.CONVOLUTION](convolve, hidden, None, **(said or {}))
        parts = {"g": hidden, "beta": hidden, "initial_state": state}
        read = wrappers["torch_chunk_gated_delta_rule"]
        return conv.rows, *(made.rows for made in read(rule, hidden, hidden, hidden, **parts))

    def model(hidden: Any, moved: Any = None, by_place: bool = False, **kwargs: Any) -> Any:
        wrappers[linear.MASKED](lambda **kwargs: None, **kwargs)
        positions = kwargs.pop("position_ids", None) if moved is None else moved
        if by_place:
            return wrappers["forward"](inside, None, hidden, None, None, positions, **kwargs)
        return wrappers["forward"](inside, None, hidden, **{**kwargs, "position_ids": positions})

    return model


ONES, PACKED = Rows([1] * 5), Rows([0, 1, 0, 1, 2])
AS_ONE = [1, 2, 3, 4, 5]


def test_each_text_is_read_by_itself(layer: Any) -> None:
    assert layer(ONES, position_ids=PACKED) == (([1, 2, 1, 2, 3],), ([1, 2, 1, 2, 3],), ([3],))
    assert layer(ONES, by_place=True, position_ids=PACKED)[0] == ([1, 2, 1, 2, 3],)


def test_every_row_has_texts_of_its_own(layer: Any) -> None:
    two, positions = Rows([1] * 5, [2] * 5), Rows([0, 1, 0, 1, 2], [0, 1, 2, 0, 1])
    assert layer(two, position_ids=positions)[0] == ([1, 2, 1, 2, 3], [2, 4, 6, 2, 4])
    assert layer(two, position_ids=positions)[2] == ([3], [4])


def test_zeros_that_fill_a_row_up_are_one_call(layer: Any) -> None:
    assert layer(ONES, position_ids=Rows([0, 1, 0, 0, 0]))[0] == ([1, 2, 1, 2, 3],)
    assert layer(ONES, position_ids=Rows([0, 0, 0, 1, 2]))[0] == ([1, 1, 1, 2, 3],)


def test_a_mask_says_what_is_read(layer: Any) -> None:
    assert layer(ONES, position_ids=PACKED, attention_mask=object())[0] == (AS_ONE,)
    assert layer(ONES, position_ids=PACKED)[0] == ([1, 2, 1, 2, 3],)


def test_texts_that_a_mask_tells_apart(
    layer: Any, monkeypatch: pytest.MonkeyPatch, world: type[World]
) -> None:
    asked = []

    def of_mask(mask: Any, positions: Any) -> list[list[int]]:
        asked.append((mask, positions))
        return [[3, 2]]

    monkeypatch.setattr(texts_of_rows, "texts_of_mask", of_mask)
    mask, positions = object(), Rows([0, 1, 1, 0, 1])  # an image stands still
    assert layer(ONES, position_ids=positions, attention_mask=mask)[0] == ([1, 2, 3, 1, 2],)
    assert asked == [(mask, positions)]
    moved = Rows([0, 1, 1, 0, 1], device="cuda:1")
    assert layer(ONES, moved, position_ids=positions, attention_mask=mask)[0] == ([1, 2, 3, 1, 2],)
    world.compiled = True
    assert layer(ONES, position_ids=positions, attention_mask=mask)[0] == (AS_ONE,)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_beside_a_cache_texts_are_apart_in_training_alone(name: str, layer: Any, world: type[World]) -> None:
    said = {"position_ids": PACKED, name: object()}
    assert layer(ONES, **said)[0] == ([1, 2, 1, 2, 3],)
    world.recorded = False
    assert layer(ONES, **said)[0] == (AS_ONE,)


def test_without_a_cache_texts_are_apart_in_evaluation_too(layer: Any, world: type[World]) -> None:
    world.recorded = False
    assert layer(ONES, position_ids=PACKED)[0] == ([1, 2, 1, 2, 3],)


@pytest.mark.parametrize("how", ["compiled", "traced"])
def test_nothing_is_read_while_traced(how: str, layer: Any, world: type[World]) -> None:
    setattr(world, how, True)
    assert layer(ONES, position_ids=PACKED)[0] == (AS_ONE,)


def test_what_goes_on_from_a_state_or_has_more_before_it_is_left_alone(layer: Any) -> None:
    assert layer(ONES, position_ids=PACKED, state=object())[1] == (AS_ONE,)
    assert layer(Rows([1] * 7), position_ids=PACKED)[0] == ([*AS_ONE, 6, 7],)


def test_other_positions_change_nothing(layer: Any) -> None:
    assert layer(ONES, position_ids=Rows([0, 1, 2, 3, 4]))[0] == (AS_ONE,)
    assert layer(ONES)[0] == (AS_ONE,)


def test_boundaries_that_are_said_go_to_a_kernel_and_to_nothing_else(layer: Any, world: type[World]) -> None:
    said = {"position_ids": PACKED, "said": {"seq_idx": object()}}
    assert layer(ONES, **said)[0] == ([1, 2, 1, 2, 3],)
    world.installed = ("causal_conv1d",)
    with pytest.raises(AssertionError, match="takes no boundaries"):  # the kernel would
        layer(ONES, **said)


def test_positions_are_read_once_a_forward(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    positions = Rows([0, 1, 0, 1, 2])
    assert layer(ONES, position_ids=positions)[0] == ([1, 2, 1, 2, 3],)
    positions.rows = ([0, 1, 2, 0, 1],)
    assert layer(ONES, position_ids=positions)[0] == ([1, 2, 3, 1, 2],)
    monkeypatch.setattr(texts_of_rows, "lengths_of", lambda positions: pytest.fail("read again"))
    with pytest.raises(pytest.fail.Exception, match="read again"):
        layer(ONES, position_ids=positions)


def test_a_copy_on_another_device_is_known(layer: Any) -> None:
    moved = Rows([0, 1, 0, 1, 2], device="cuda:1")
    assert layer(ONES, moved, position_ids=PACKED)[0] == ([1, 2, 1, 2, 3],)
    other = Rows([0, 1, 2, 0, 1], device="cuda:1")
    assert layer(ONES, other, position_ids=PACKED)[0] == (AS_ONE,)


def test_positions_of_which_no_mask_was_made_change_nothing(layer: Any) -> None:
    assert layer(ONES, Rows([0, 1, 0, 1, 2]), position_ids=PACKED)[0] == (AS_ONE,)
    masked = Rows([0, 1, 0, 1, 2], device="cuda:1")
    assert layer(ONES, masked, position_ids=PACKED, attention_mask=object())[0] == (AS_ONE,)


EARLIER = """
class Qwen3_5DecoderLayer:
    def forward(self, hidden_states, position_embeddings, attention_mask=None, position_ids=None):
        pass

class Qwen3_5TextModel:
    def forward(self, position_ids):
        text_position_ids = position_ids[0]
        mask = create_causal_mask(
            position_ids=text_position_ids,
        )
        for decoder_layer in self.layers:
            hidden_states = decoder_layer(
                hidden_states,
                position_ids=text_position_ids,
            )
        return kept(position_ids=text_position_ids,)
"""


def look_earlier(source: str) -> Any:
    return earlier.look(api.Code(MODULE, "modeling.py", source))


def test_layers_that_hold_their_convolution_are_known() -> None:
    assert look_earlier(EARLIER) is None
    assert (
        look_earlier(EARLIER.replace("text_position_ids", "position_ids")) is None
    )  # of a model of texts alone


def test_layers_that_are_handed_positions_of_images_are_left_alone() -> None:
    head, layers = EARLIER.split("for decoder_layer")
    of_images = head + "for decoder_layer" + layers.replace("=text_position_ids", "=position_ids", 1)
    assert look_earlier(of_images) == "layers are handed the positions of images"


def test_later_layers_and_other_forms() -> None:
    later = "def causal_conv1d_fn(hidden_states):\n    pass\n" + EARLIER
    assert look_earlier(later) == "layers call a function for their convolution"
    with pytest.raises(api.Unrecognised, match="told of positions in another way"):
        look_earlier(EARLIER.replace("create_causal_mask", "masks_of"))
    with pytest.raises(api.Unrecognised, match="has no"):
        look_earlier(EARLIER.replace("Qwen3_5DecoderLayer", "Other"))


class Convolution:
    """With torch's hooks; what an adapter puts around one has no kernel's size of its own."""

    def __init__(self, *parts: Convolution) -> None:
        self.parts = parts
        self.hooks: list[Any] = []
        if not parts:
            self.kernel_size = (4,)

    def modules(self) -> list[Convolution]:
        return [self, *self.parts]

    def register_forward_pre_hook(self, hook: Any) -> Any:
        self.hooks.append(hook)
        return types.SimpleNamespace(remove=lambda: self.hooks.remove(hook))

    register_forward_hook = register_forward_pre_hook


class Part:
    """Of a layer, what is no attention: it holds a rule, and a convolution."""

    def __init__(self, kernel: Any, convolution: Convolution) -> None:
        self.causal_conv1d_fn, self.chunk_gated_delta_rule = kernel, rule
        self.conv1d = convolution

    def modules(self) -> list[Any]:
        return [self, *self.conv1d.modules()]


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("kernel", [None, convolve])
def test_what_a_layer_holds_is_put_back(kernel: Any, adapted: bool, world: type[World]) -> None:
    swapped: list[str] = []

    @contextlib.contextmanager
    def swap(owner: Any, name: str, value: Any) -> Iterator[None]:
        before = vars(owner)[name]
        setattr(owner, name, value)
        swapped.append(name)
        yield
        setattr(owner, name, before)

    plain = Convolution()
    part = Part(kernel, Convolution(plain, Convolution()) if adapted else plain)
    told, patch = texts_of_rows.Told(), types.SimpleNamespace(swapped=swap)
    with told.texts([[2, 3]]), earlier._told_apart(patch, part, told, [[2, 3]]):
        assert part.chunk_gated_delta_rule(ONES, ONES, ONES, g=ONES, beta=ONES)[0].rows == ([1, 2, 1, 2, 3],)
        assert [len(each.hooks) for each in part.conv1d.modules()] == ([0, 2, 2] if adapted else [2])
        if kernel is not None:
            assert part.causal_conv1d_fn(x=ONES, weight=None, seq_idx=None).rows == ([1, 2, 1, 2, 3],)
    assert (part.causal_conv1d_fn, part.chunk_gated_delta_rule) == (kernel, rule)
    assert not any(each.hooks for each in part.conv1d.modules())
    assert swapped == ["chunk_gated_delta_rule"] if kernel is None else len(swapped) == 2


def test_a_convolution_that_another_thread_calls_is_left_alone() -> None:
    gaps, rows, found = earlier.Gaps([[2, 3]], 3), types.SimpleNamespace(shape=(1, 8, 5)), []
    other = threading.Thread(
        target=lambda: found.extend([gaps.before(None, (rows,)), gaps.after(None, (), rows)])
    )
    other.start()
    other.join()
    assert found == [None, None]


def test_a_convolution_of_something_else_than_the_rows_is_left_alone() -> None:
    gaps = earlier.Gaps([[2, 3]], 3)
    for other in (types.SimpleNamespace(shape=(2, 8, 5)), types.SimpleNamespace(shape=(1, 8, 2))):
        assert gaps.before(None, (other,)) is None
        assert gaps.after(None, (other,), other) is None
