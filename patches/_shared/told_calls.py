"""A call of a module as bytes, so that a rank can tell another how to make the same one.

Of a tensor of numbers that stand for something (indices, sizes of images) the numbers are told, of one of
floating-point numbers the shape alone: who stands in for a call needs no more.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any


def packed(call: Any) -> bytes:
    """Tensors, numbers, words, and lists, tuples and dictionaries of them.

    Raises:
        TypeError: there is something else in ``call``; its text names the type.
    """
    return json.dumps(_written(call)).encode()


def unpacked(told: bytes, device: Any) -> Any:
    """What was packed, on ``device``: with ones where the shape alone was told."""
    return _read(json.loads(told), device)


def _written(value: Any) -> Any:
    import torch

    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return {"tuple" if isinstance(value, tuple) else "list": [_written(item) for item in value]}
    if type(value) is dict:
        return {"dict": [[_written(name), _written(item)] for name, item in value.items()]}
    if isinstance(value, torch.device):
        return {"device": None}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.Tensor):
        numbers = None
        if not value.is_floating_point():
            numbers = base64.b64encode(value.detach().cpu().contiguous().numpy().tobytes()).decode()
        return {"tensor": [[*value.shape], _written(value.dtype), value.requires_grad, numbers]}
    raise TypeError(type(value).__name__)


def _read(said: Any, device: Any) -> Any:
    import torch

    if not isinstance(said, dict):
        return said
    ((kind, value),) = said.items()
    if kind in ("list", "tuple"):
        items = [_read(item, device) for item in value]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        return {_read(name, device): _read(item, device) for name, item in value}
    if kind == "device":
        return device
    if kind == "dtype":
        return getattr(torch, value)
    shape, dtype, requires_grad, numbers = value
    dtype = _read(dtype, device)
    if numbers is None:
        return torch.ones(shape, dtype=dtype, device=device, requires_grad=requires_grad)
    read = bytearray(base64.b64decode(numbers))
    found = torch.frombuffer(read, dtype=dtype) if read else torch.empty(0, dtype=dtype)
    return found.reshape(shape).to(device)


def tensors(value: Any) -> Iterator[Any]:
    """The floating-point tensors in ``value``, wherever they stand in it."""
    found: list[Any] = []

    def note(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    mapped(value, note)
    return iter(found)


def every_tensor(value: Any) -> Iterator[Any]:
    """Those of whole numbers too, in what a call is made with."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from every_tensor(item)


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """``value`` with each floating-point tensor in it replaced, in place where it can be."""
    import torch

    if isinstance(value, torch.Tensor):
        return function(value) if value.is_floating_point() else value
    if isinstance(value, dict):  # transformers' ModelOutput is one
        for name, item in [*value.items()]:
            if (new := mapped(item, function)) is not item:
                value[name] = new
    elif isinstance(value, list):
        value[:] = [mapped(item, function) for item in value]
    elif isinstance(value, tuple):
        items = [mapped(item, function) for item in value]
        if any(new is not item for new, item in zip(items, value, strict=True)):
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        changed = {n: new for n, item in held.items() if (new := mapped(item, function)) is not item}
        return _with(value, changed) if changed else value
    return value


def _with(value: Any, changed: dict[str, Any]) -> Any:
    made = copy.copy(value)
    for name, new in changed.items():
        object.__setattr__(made, name, new)  # it may be frozen
    return made
