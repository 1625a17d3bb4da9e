"""A file that holds empty tensors is found out when it is loaded, after the training is gone.

What the user sees: nothing when ``torch.save(model.state_dict(), …)`` or ``save_file(…)`` writes under
ZeRO-3, and ``size mismatch … copying a param with shape torch.Size([0]) from checkpoint`` afterwards.

Why: every rank holds a part of each weight and an empty tensor in its place, and that is what
``state_dict()`` returns.

What is done: the names of the placeholders that ``state_dict()`` hands out are remembered. ``torch.save``
and safetensors refuse to write an empty tensor under one of these names; the error names it and what to
call instead. Empty tensors of any other name are written as ever, and DeepSpeed's own checkpoints, which
say that they are DeepSpeed's, too, and sharded ones of a script's own, where a rank's slice may be empty.

Every DeepSpeed. Upstream: https://github.com/OpenGVLab/InternVL/issues/751
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.zero3_parameters import absent, any_absent

PREFIX, OBJECT, TENSORS = Argument(1, "prefix"), Argument(0, "obj"), Argument(0, "tensors")
DEPTH = 4  # how deep in dicts and lists a state dict may lie
REFUSED = (
    "vlmpatch [zero3-empty-saves]: {name} would be written empty: under ZeRO-3 this rank holds a part of "
    "it only ({shape} in all). Nothing was written. Save with trainer.save_model() or "
    "model.save_pretrained(folder) on every rank, or gather first, on every rank: with "
    "deepspeed.zero.GatheredParameters(list(model.parameters())), with the state_dict taken inside. "
    "More: python -m vlmpatch explain zero3-empty-saves"
)


def look(code: Code) -> str | None:
    """Parameters must say where they are."""
    if "ZeroParamStatus" not in code.names:
        raise Unrecognised(f"{code.module} has no ZeroParamStatus")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Remember placeholders, and refuse them."""
    torch = importlib.import_module("torch")
    names: dict[str, Any] = {}

    def collect(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        prefix = PREFIX.of(args, kwargs, "")
        names.update((prefix + name, p.ds_shape) for name, p in self._parameters.items() if absent(p))
        return found

    def save(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        refuse(names, OBJECT.of(args, kwargs))
        return original(*args, **kwargs)

    def flatten(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        refuse(names, TENSORS.of(args, kwargs))
        return original(*args, **kwargs)

    patch.wrap(torch.nn.Module, "_save_to_state_dict", collect)
    patch.wrap(torch, "save", save)
    try:
        safetensors = importlib.import_module("safetensors.torch")
    except ImportError:
        return
    for name in ("_flatten", "_flatten_as_ptr"):
        if hasattr(safetensors, name):
            patch.wrap(safetensors, name, flatten)


def refuse(names: Mapping[str, Any], what: Any) -> None:
    """Raise where ``what`` holds a placeholder.

    Raises:
        RuntimeError: it names the tensor and what to call instead.
    """
    # By their types: what else is saved may answer for any name, by an error or by making something.
    if isinstance(what, sys.modules["torch"].nn.Module) and any_absent(what):
        empty = next((n for n, p in what.named_parameters() if absent(p)), None)
        if empty is not None:
            shape = tuple(dict(what.named_parameters())[empty].ds_shape)
            raise RuntimeError(REFUSED.format(name=empty, shape=shape))
    if not names:
        return
    held = list(_tensors(what, DEPTH))
    for key, value in held:
        known = _placeholder(names, key) if _is_placeholder(value) else None
        if known is not None and not any(_is_slice(names, *each) for each in held):
            raise RuntimeError(REFUSED.format(name=key, shape=tuple(names[known])))


def _is_placeholder(value: Any) -> bool:
    """Whether ``value`` is empty as DeepSpeed leaves it, and not for being cut from what is not."""
    return tuple(value.shape) == (0,) and value.untyped_storage().nbytes() == 0


def _is_plain(value: Any) -> bool:
    """Whether it has a shape and numbers in a storage: not a lazy, sparse, nested or wrapped one.

    Most others cannot be asked; none of them is what DeepSpeed leaves in a parameter's place.
    """
    torch = sys.modules["torch"]
    own = type(value).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
    lazy = torch.nn.parameter.is_lazy(value)
    return own and not lazy and value.layout is torch.strided and not (value.is_nested or value.is_meta)


def _is_slice(names: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether ``value`` is a part of a partitioned parameter: the script writes a file for each rank."""
    known = _placeholder(names, key) if value.numel() else None
    return known is not None and bool(value.numel() < math.prod(names[known]))


def _tensors(what: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Every tensor of a dict, or of dicts in it, with its key."""
    if depth == 0 or (isinstance(what, dict) and dict.__contains__(what, "ds_version")):
        return
    values: Any = dict.items(what) if isinstance(what, dict) else ()
    if isinstance(what, (list, tuple)) and len(what) < 100:
        values = enumerate(what)
    for key, value in values:
        if isinstance(value, sys.modules["torch"].Tensor):
            if isinstance(key, str) and _is_plain(value):
                yield key, value
        else:
            yield from _tensors(value, depth - 1)


def _placeholder(names: Mapping[str, Any], key: str) -> str | None:
    """The parameter behind ``key``, whose prefix (``module.``, ``base_model.model.``) may be another."""
    if key in names:
        return key
    shorter = key
    while "." in shorter:
        shorter = shorter.partition(".")[2]
        if shorter in names and "." in shorter:
            return shorter
    if "." not in key:
        return None
    return next((name for name in names if name.endswith(f".{key}") or _in_an_adapter(name) == key), None)


def _in_an_adapter(name: str) -> str:
    """As PEFT writes it: without the adapter's name, which stands before the last part."""
    owner, _, last = name.rpartition(".")
    return f"{owner.rpartition('.')[0]}.{last}"
