"""Packed rows of models with positions along three axes: forms of their text models, calls that change."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from typing import Any

import pytest

from vlmpatch import api

on_axes: Any = importlib.import_module("vlmpatch.patches.transformers.packed_rows_on_three_axes")
packed_positions: Any = importlib.import_module("vlmpatch.patches._shared.packed_positions")
MODULE = "transformers.models.ernie4_5_vl_moe.modeling_ernie4_5_vl_moe"
SOURCE = """
class {kind}:
    def forward(self, input_ids, attention_mask, position_ids, past_key_values):
        if position_ids.ndim == 2:
            position_ids = position_ids[None, ...].expand({rows}, position_ids.shape[0], -1)
        if position_ids.ndim == 3 and position_ids.shape[0] == {text}:
            text_position_ids = position_ids[0]
        else:
            text_position_ids = {otherwise}
"""


def look(kind: str, module: str, rows: int = 3, text: int = 4, otherwise: str = "None") -> Any:
    source = SOURCE.format(kind=kind, rows=rows, text=text, otherwise=otherwise)
    return on_axes.look(api.Code(f"transformers.models.{module}.modeling_{module}", "modeling.py", source))


@pytest.mark.parametrize(("module", "kind"), on_axes.KINDS.items())
def test_the_bug_is_known_in_each_model(module: str, kind: str) -> None:
    assert look(kind, module) is None


def test_ernie_had_another_name() -> None:
    assert look("Ernie4_5_VL_MoeTextModel", "ernie4_5_vl_moe") is None


def test_other_forms_are_left_alone() -> None:
    kind, module = "Qwen2VLTextModel", "qwen2_vl"
    told = "positions of texts are not told apart from those of images"
    assert look(kind, module, text=5) == told
    assert look(kind, module, otherwise="position_ids[0]") == "rows are looked for in positions of a text"
    assert look(kind, module, rows=4) == "positions of a text are not laid along three axes"


def test_a_text_model_that_is_gone_is_no_form_that_is_known() -> None:
    with pytest.raises(api.Unrecognised, match="has no"):
        look("Other", "qwen2_vl")


class Positions:
    shape = (1, 6)

    def expand(self, *shape: int) -> tuple[int, ...]:
        return shape


class Text:
    """As Ernie 4.5 VL has it: the cache is not where other models have it."""

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        moe_mm_token_type_ids: Any = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> Any: ...


class Traced:
    """What may look on."""

    compiled = traced = False


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The wrapper, around what returns its call."""
    monkeypatch.setattr(Traced, "compiled", False)
    monkeypatch.setattr(Traced, "traced", False)
    torch: Any = types.ModuleType("torch")
    torch.compiler = types.SimpleNamespace(is_compiling=lambda: Traced.compiled)
    torch.jit = types.SimpleNamespace(is_tracing=lambda: Traced.traced)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(on_axes, "begin_again", lambda positions: isinstance(positions, Positions))
    made: list[Any] = []
    patch: Any = types.SimpleNamespace(wrap=lambda owner, name, wrapper: made.append(wrapper))
    module: Any = types.SimpleNamespace(__name__=MODULE, Ernie4_5_VL_MoeTextModel=Text)
    on_axes.apply(patch, module)
    return lambda *args, **kwargs: made[0](lambda self, *a, **k: (a, k), None, *args, **kwargs)


def test_packed_positions_become_four_rows(called: Any) -> None:
    assert called(None, None, Positions()) == ((None, None, (4, 1, 6)), {})
    said = {"position_ids": Positions(), "cache": None, "moe_mm_token_type_ids": 0}
    assert called(**said) == ((), {**said, "position_ids": (4, 1, 6)})


@pytest.mark.parametrize("name", ["attention_mask", "cache"])
def test_beside_a_mask_or_a_cache_nothing_changes(name: str, called: Any) -> None:
    said = {"position_ids": Positions(), name: object()}
    assert called(**said) == ((), said)


def test_a_cache_is_seen_where_this_model_takes_it(called: Any) -> None:
    positions = Positions()
    assert called(None, None, positions, 0, "cache") == ((None, None, positions, 0, "cache"), {})
    assert called(None, None, positions, 0) == ((None, None, (4, 1, 6), 0), {})


def test_other_positions_are_handed_on_as_they_are(called: Any) -> None:
    said = {"position_ids": object()}
    assert called(**said)[1]["position_ids"] is said["position_ids"]
    assert called() == ((), {})


@pytest.mark.parametrize("how", ["compiled", "traced"])
def test_nothing_is_looked_at_while_traced(how: str, called: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Traced, how, True)
    monkeypatch.setattr(on_axes, "begin_again", lambda positions: pytest.fail("looked at"))
    said = {"position_ids": Positions()}
    assert called(**said) == ((), said)


@pytest.mark.parametrize("capturing", [True, False])
def test_nothing_is_read_while_a_cuda_graph_is_captured(
    capturing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tensor:
        is_meta, is_cuda = False, True

        def dim(self) -> int:
            raise LookupError

    torch: Any = types.ModuleType("torch")
    torch.Tensor = Tensor
    torch.cuda = types.SimpleNamespace(is_current_stream_capturing=lambda: capturing)
    torch._C = types.SimpleNamespace(
        _len_torch_dispatch_stack=lambda: 0,
        DisableTorchFunction=contextlib.nullcontext,
        _functorch=types.SimpleNamespace(is_functorch_wrapped_tensor=lambda tensor: False),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    if capturing:
        assert not packed_positions.begin_again(Tensor())
    else:
        with pytest.raises(LookupError):
            packed_positions.begin_again(Tensor())
