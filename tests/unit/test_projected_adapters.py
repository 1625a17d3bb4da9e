"""OSF: its projection is hung on the tensors that a forward uses, once on each."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

patch: Any = importlib.import_module("vlmpatch.patches.peft.osf_projection_under_fsdp")

LAYER = """
from functools import partial

class OSFLayer:
    def _attach_hooks(self, adapter_name):
        parts = self.osf_svd_params[adapter_name]

        def hook(grad, name, adapter, layer):
            return grad.projected(layer.kept)

        handle_u = parts["U_low"].register_hook(partial(hook, name="U_low", adapter=adapter_name, layer=self))
        handle_v = parts["V_low"].register_hook(partial(hook, name="V_low", adapter=adapter_name, layer=self))
        self.hook_handles.extend([handle_u, handle_v])

class Linear(OSFLayer):
    def forward(self, x):
        return [self.osf_svd_params[name] for name in self.active_adapters], x
"""


class Tensor:
    """With hooks, as torch's have them."""

    def __init__(self, requires_grad: bool = True) -> None:
        self.requires_grad = requires_grad
        self._backward_hooks: dict[int, Callable[[Any], Any]] | None = None

    def register_hook(self, hook: Callable[[Any], Any]) -> Any:
        hooks = self._backward_hooks = self._backward_hooks or {}
        number = len(hooks)
        hooks[number] = hook
        return SimpleNamespace(id=number, hooks_dict_ref=lambda: hooks)


class Gradient:
    """Of a dtype; what it was projected with must have the same."""

    def __init__(self, dtype: str, projected: bool = False) -> None:
        self.dtype, self.was_projected = dtype, projected

    def to(self, dtype: str) -> Gradient:
        return Gradient(dtype, self.was_projected)

    def projected(self, kept: Gradient) -> Gradient:
        assert kept.dtype == self.dtype
        return Gradient(self.dtype, True)


@pytest.fixture
def layer(monkeypatch: pytest.MonkeyPatch) -> Any:
    compiler = SimpleNamespace(is_compiling=lambda: False)
    torch = SimpleNamespace(compiler=compiler, is_grad_enabled=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    module = ModuleType("peft.tuners.osf.layer")
    exec(LAYER, vars(module))
    patch.apply(api.Patch("osf-projection-under-fsdp", Journal()), module)
    made = vars(module)["Linear"]()
    made.kept, made.hook_handles, made.active_adapters = Gradient("float32"), [], ["default"]
    made.named_buffers = lambda: [("base_layer.scale", Gradient("int8")), ("_osf_U_high.default", made.kept)]
    made.osf_svd_params = {"default": {name: Tensor() for name in ("U_low", "S_low", "V_low")}}
    made._attach_hooks("default")
    return made


def replaced(layer: Any) -> dict[str, Tensor]:
    """As FSDP does it."""
    made = layer.osf_svd_params["default"] = {name: Tensor() for name in ("U_low", "S_low", "V_low")}
    return made


def test_what_has_its_hooks_is_left_alone(layer: Any) -> None:
    parts = layer.osf_svd_params["default"]
    layer.forward(1)
    assert [len(parts[name]._backward_hooks or ()) for name in parts] == [1, 0, 1]


def test_what_takes_its_place_gets_them_once_and_is_projected_in_their_dtype(layer: Any) -> None:
    parts, handles = replaced(layer), [*layer.hook_handles]
    for _ in range(3):
        layer.forward(1)
    assert [len(parts[name]._backward_hooks or ()) for name in parts] == [1, 0, 1]
    assert layer.hook_handles == handles
    for name in ("U_low", "V_low"):
        found = parts[name]._backward_hooks[0](Gradient("bfloat16"))  # type: ignore[index]
        assert (found.dtype, found.was_projected) == ("bfloat16", True)


def test_hooks_that_were_taken_off_stay_off(layer: Any) -> None:
    parts = replaced(layer)
    layer.hook_handles.clear()
    layer.forward(1)
    assert not any(each._backward_hooks for each in parts.values())


def test_nothing_is_hung_where_there_is_no_gradient(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = replaced(layer)
    monkeypatch.setattr(sys.modules["torch"], "is_grad_enabled", lambda: False)
    layer.forward(1)
    assert not any(each._backward_hooks for each in parts.values())
    monkeypatch.setattr(sys.modules["torch"], "is_grad_enabled", lambda: True)
    parts["U_low"].requires_grad = parts["V_low"].requires_grad = False
    layer.forward(1)
    assert not any(each._backward_hooks for each in parts.values())


def test_the_hooks_are_looked_for() -> None:
    def look(text: str) -> str | None:
        found: str | None = patch.look(api.Code("peft.tuners.osf.layer", "layer.py", text))
        return found

    known = LAYER.replace('parts["', 'svd_module["').replace("parts =", "svd_module =")
    assert look(known) is None
    assert "hangs no hooks" in str(look("class OSFLayer:\n    pass\n"))
    with pytest.raises(api.Unrecognised):
        look(known.replace("layer=self", "layer=None"))
