"""Which buffers of a checkpoint are copied under ZeRO-3, and which releases load them by themselves."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import pytest

from vlmpatch import api

buffers: Any = importlib.import_module("vlmpatch.patches.transformers.zero3_loaded_buffers")
SOURCE = f"""
def {buffers.NAME}(model_to_load, state_dict):
    {buffers.HANDS_ON}
        pass
"""


def look(source: str) -> Any:
    return buffers.look(api.Code("transformers.integrations.deepspeed", "deepspeed.py", source))


def test_the_bug_is_known() -> None:
    assert look(SOURCE) is None
    assert look("") == "no function of its own loads a checkpoint under ZeRO-3"
    assert look(SOURCE + "    module.named_buffers()\n") == "buffers are loaded on every rank"
    for old, new in (("modifier_rank=0", "modifier_rank=1"), ("model_to_load, state_dict", "state_dict")):
        with pytest.raises(api.Unrecognised):
            look(SOURCE.replace(old, new))


def test_whether_names_are_converted_is_known() -> None:
    convert = f"    state_dict = {buffers.RENAME}(model_to_load, state_dict, weight_mapping)\n"
    assert look(SOURCE + convert) is None
    with pytest.raises(api.Unrecognised):
        look(SOURCE + convert.replace("state_dict =", "state_dicts ="))


class Tensor:
    """Stands for torch's."""

    def __init__(self, shape: tuple[int, ...] = (2,), is_meta: bool = False) -> None:
        self.shape, self.is_meta = shape, is_meta
        self.copied: Any = None

    def copy_(self, value: Any) -> None:
        self.copied = value


class Module:
    """With buffers, of which some are not saved."""

    def __init__(self, *parts: tuple[str, Module], unsaved: str = "", **held: Tensor | None) -> None:
        self.parts, self._buffers, self._non_persistent_buffers_set = parts, held, {unsaved}

    base_model_prefix = "model"

    def named_modules(self) -> list[tuple[str, Module]]:
        return [("", self), *self.parts]


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import contextlib

    stand_in: Any = types.ModuleType("torch")
    stand_in.Tensor, stand_in.no_grad = Tensor, contextlib.nullcontext
    monkeypatch.setitem(sys.modules, "torch", stand_in)


def test_what_a_file_has_of_buffers_is_copied() -> None:
    router, own = Tensor(), Tensor()
    model = Module(("gate", Module(bias=router, none=None)), own=own)
    state = {"gate.bias": Tensor(), "own": Tensor(), "gate.weight": Tensor()}
    assert buffers.fill(model, state) == {"gate.bias": router, "own": own}
    assert (router.copied, own.copied) == (state["gate.bias"], state["own"])


def test_names_of_a_base_model_are_known() -> None:
    router = Tensor()
    model, state = Module(("model.gate", Module(bias=router))), {"gate.bias": Tensor()}
    assert buffers.fill(model, state) == {"model.gate.bias": router}
    assert router.copied is state["gate.bias"]


@pytest.mark.parametrize(
    ("held", "read"),
    [
        (Tensor(), Tensor((3,))),
        (Tensor(), Tensor(is_meta=True)),
        (Tensor(is_meta=True), Tensor()),
        (Tensor(), [1.0, 2.0]),
        (Tensor(), None),
    ],
)
def test_what_cannot_be_copied_is_left_alone(held: Tensor, read: Any) -> None:
    assert buffers.fill(Module(bias=held), {"bias": read}) == {}
    assert held.copied is None


def test_what_is_not_saved_is_left_alone() -> None:
    unsaved = Tensor()
    buffers.fill(Module(unsaved="table", table=unsaved), {"table": Tensor()})
    assert unsaved.copied is None


class Loading:
    """The functions of a release, as ``apply`` finds them."""

    def __init__(self, said: Any, renamed: dict[str, Any] | None) -> None:
        self.said, self.renamed = said, renamed

    def wrapped(self) -> Any:
        wraps: dict[str, Any] = {}
        patch: Any = types.SimpleNamespace(
            wrap=lambda _, name, wrapper: wraps.setdefault(name, wrapper), replace=setattr
        )
        module: Any = types.SimpleNamespace(**{buffers.RENAME: None} if self.renamed is not None else {})
        buffers.apply(patch, module)

        def load(model_to_load: Any, state_dict: Any) -> Any:
            if self.renamed is not None:
                renamed = wraps[buffers.RENAME](lambda *_: self.renamed, model_to_load, state_dict)
                assert renamed is self.renamed
            return self.said

        return lambda *args, **kwargs: wraps[buffers.NAME](load, *args, **kwargs)


def test_what_was_renamed_is_loaded_and_no_longer_missing() -> None:
    router, missing = Tensor(), {"gate.bias", "gate.weight"}
    said: Any = ([], missing)
    renamed = {"gate.bias": Tensor()}
    found = Loading(said, renamed).wrapped()(Module(("gate", Module(bias=router))), {"router.bias": Tensor()})
    assert found is said
    assert missing == {"gate.weight"}
    assert vars(router)[buffers.MARK]
    assert router.copied is renamed["gate.bias"]


def test_a_load_without_conversions_after_one_with_them() -> None:
    router, errors = Tensor(), ["an error"]
    loading = Loading(errors, None)
    state = {"gate.bias": Tensor()}
    found = loading.wrapped()(model_to_load=Module(("gate", Module(bias=router))), state_dict=state)
    assert found is errors
    assert router.copied is state["gate.bias"]
    assert buffers.MARK not in vars(router)
    assert buffers._renamed.get() is None
