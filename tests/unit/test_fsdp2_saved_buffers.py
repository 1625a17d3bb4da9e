"""Which buffers the first rank hands out under FSDP2, and which accelerate does so by itself."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from vlmpatch import api

saved: Any = importlib.import_module("vlmpatch.patches.accelerate.fsdp2_saved_buffers")
SOURCE = f"""
def {saved.NAME}(accelerator, model, full_sd, cpu_offload=False):
    for sharded_param in meta_sharded_sd.values():
        {saved.TAKES_ALL}
"""


def look(source: str) -> Any:
    return saved.look(api.Code("accelerate.utils.fsdp_utils", "fsdp_utils.py", source))


def test_the_bug_is_known() -> None:
    assert look(SOURCE) is None
    assert look("") == f"this accelerate has no {saved.NAME}"
    assert look(SOURCE + f"        assert {saved.TELLS}\n") == "what is not sharded is loaded too"
    for old, new in ((saved.TAKES_ALL, "pass"), ("model, full_sd", "full_sd")):
        with pytest.raises(api.Unrecognised):
            look(SOURCE.replace(old, new))


class Tensor:
    """Stands for torch's."""

    shape, dtype = (2,), "float32"

    def __init__(self, said: str) -> None:
        self.said = said

    def detach(self) -> Tensor:
        return self

    def to(self, device: str, dtype: str) -> Tensor:
        return Tensor(f"{self.said} on {device} in {dtype}")

    def contiguous(self) -> Tensor:
        return self


class Module:
    """With buffers, of which some are not saved."""

    def __init__(self, *parts: tuple[str, Module], unsaved: str = "", **held: Tensor | None) -> None:
        self.parts, self._buffers, self._non_persistent_buffers_set = parts, held, {unsaved}
        self.loaded: list[Any] = []

    def named_modules(self) -> list[tuple[str, Module]]:
        return [("", self), *self.parts]

    def modules(self) -> list[Module]:
        return [module for _, module in self.named_modules()]

    def state_dict(self) -> dict[str, Any]:
        return {name: "sharded" for name in ("weight",)} | dict(saved.saved_buffers(self))

    def load_state_dict(self, state: dict[str, Any], **said: bool) -> None:
        self.loaded.append((state, said))


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    found: list[Tensor] = []
    stand_in: Any = types.ModuleType("torch")
    stand_in.empty = lambda shape, dtype, device: Tensor(f"empty on {device} in {dtype}")
    stand_in.distributed = types.SimpleNamespace(broadcast=lambda value, src: found.append(value))
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    return found


@contextlib.contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    yield
    setattr(owner, name, before)


def prepared(model: Module, whole: dict[str, Any], main: bool = True) -> Any:
    wraps: dict[str, Any] = {}
    patch: Any = types.SimpleNamespace(
        wrap=lambda _, name, wrapper: wraps.setdefault(name, wrapper), swapped=swapped
    )
    saved.apply(patch, types.ModuleType("fsdp_utils"))

    def original(accelerator: Any, model: Any, full_sd: Any, cpu_offload: bool = False) -> Any:
        return model, full_sd, model.state_dict()

    accelerator = types.SimpleNamespace(is_main_process=main, device="here")
    return wraps[saved.NAME](original, accelerator, model, full_sd=whole)


def test_a_model_without_saved_buffers_is_handed_on_as_it_is(sent: list[Tensor]) -> None:
    model, whole = Module(unsaved="table", table=Tensor("a table"), none=None), {"weight": "whole"}
    found, got, _ = prepared(model, whole)
    assert found is model
    assert got is whole
    assert (sent, model.loaded) == ([], [])


@pytest.mark.parametrize("main", [True, False])
def test_buffers_are_handed_out_beside_parameters(sent: list[Tensor], main: bool) -> None:
    gate = Module(unsaved="table", bias=Tensor("meta"), table=Tensor("a table"))
    model = Module(("gate", gate))
    whole = {"weight": "whole", "gate.bias": Tensor("learnt")}
    found, got, owned = prepared(model, whole, main)
    assert found is model
    assert got == {"weight": "whole"}
    assert owned == {"weight": "sharded"}
    assert gate._non_persistent_buffers_set == {"table"}
    ((state, said),) = model.loaded
    assert said == {"strict": False, "assign": True}
    assert [each.said for each in state.values()] == [f"{'learnt' if main else 'empty'} on here in float32"]
    assert sent == [*state.values()]


def test_a_buffer_that_has_a_mesh_goes_the_way_of_parameters(sent: list[Tensor]) -> None:
    """As tensor parallelism leaves it; bare it was handed out."""
    sharded = Tensor("sharded")
    vars(sharded)["device_mesh"] = "a mesh"
    model, whole = Module(bias=sharded), {"weight": "whole", "bias": sharded}
    _, got, owned = prepared(model, whole)
    assert got is whole
    assert owned == {"weight": "sharded", "bias": sharded}
    beside = Module(bias=sharded, scale=Tensor("meta"))
    _, got, owned = prepared(beside, whole | {"scale": Tensor("learnt")})
    assert got == whole
    assert owned == {"weight": "sharded", "bias": sharded}
    assert [each.said for each in sent] == ["learnt on here in float32"]
