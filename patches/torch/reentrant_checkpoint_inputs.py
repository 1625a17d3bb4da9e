"""Under ``use_reentrant=True`` a block whose tensors come by keyword, in a tuple, or need no gradient.

What the user sees: nothing, where LoRA weights of a vision tower stay what they were (Llama 4, remote code
that says ``use_reentrant=True`` itself); ``element 0 of tensors does not require grad``; or ``Trying to
backward through the graph a second time`` (MLCD's tower).

Why: reentrant checkpointing knows the tensors it is handed one by one. What a block is called with by keyword
is bound to the function (``functools.partial``) and is no input to it: it is neither detached nor given a
gradient. Nor are tensors inside a tuple or a list (MLCD's positions, a part of which is trained): each block
goes back through what made them. Of a block that returns its tensors inside a tuple (PVT v2) none has a
gradient. And a block of which no input requires grad is not recorded at all, whatever it trains.

Since transformers 4.53 for keywords, whose ``GradientCheckpointingLayer`` binds them; with every torch.

The change: at the one door of the reentrant variant, tensors that require grad and are bound to the function
or inside a tuple or a list become inputs; a result of which every tensor is inside a tuple goes through the
door without it; and where nothing requires grad, a block of a model of transformers, remote code included,
that has something to train gets its first floating-point tensor as one that does. The non-reentrant variant
does not come here.

Upstream: https://github.com/huggingface/transformers/pull/38207 (the class, which says so in its docstring)
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.checkpointed import blocks_of

DOOR = "CheckpointFunction.apply(function, preserve, *args)"
MODELS = ("transformers", "transformers_modules")


def look(code: Code) -> str | None:
    """There must be one door to the reentrant variant."""
    if DOOR not in code.source:
        raise Unrecognised("torch does not enter its reentrant variant as it did")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Hand every call's tensors over one by one."""
    import torch

    def enter(original: Callable[..., Any], cls: type, /, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and len(args) > 1:
            function, inputs = with_inputs(args[0], args[2:])
            function, inputs = one_by_one(function, inputs)
            shapes: list[Any] = []
            parts = original(cls, flattening(function, shapes), args[1], *inputs, **kwargs)
            return _filled(shapes[0], iter(parts)) if shapes else parts
        return original(cls, *args, **kwargs)

    patch.wrap(module.CheckpointFunction, "apply", enter)


def with_inputs(function: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """What to call, and with which inputs, so that what is trained gets its gradient."""
    bound = function.keywords if isinstance(function, functools.partial) else {}
    handed = {name: value for name, value in bound.items() if _hold_one(value)}
    if handed:
        return _taking(function, tuple(handed)), (*handed.values(), *args)
    if any(map(_requires_grad, args)) or not trains(function):
        return function, args
    for index, value in enumerate(args):
        if _floating(value):
            return function, (*args[:index], _with_grad(value), *args[index + 1 :])
    name = next((name for name, value in bound.items() if _floating(value)), None)
    if name is None:
        return function, args
    return _taking(function, (name,)), (_with_grad(bound[name]), *args)


def one_by_one(function: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The same call, each tensor an input, where some that require grad are inside a tuple or a list."""
    if all(type(value) not in (tuple, list) or not _hold_one(value) for value in args):
        return function, args
    shape, leaves = _shape(args), _leaves(args)
    # Weakly: what a script lets go of after the backward goes, be its loss kept.
    lists = [(leaf, [*map(_held, leaf)]) for leaf in leaves if type(leaf) is list and _hold_one(leaf)]

    def call(*inputs: Any) -> Any:
        left = iter(inputs)
        whole = _filled(shape, left)
        with _put_in([(each, [(held(), next(left)) for held in first]) for each, first in lists]):
            return function(*whole)

    return call, (*leaves, *(tensor for each, _ in lists for tensor in each))


@contextlib.contextmanager
def _put_in(lists: list[tuple[list[Any], list[tuple[Any, Any]]]]) -> Iterator[None]:
    """Each list, which stays the caller's own, with inputs in place of what it held as the call was made.

    It may hold less by now, or hold it elsewhere: the block takes out of it, or the caller does.

    Args:
        lists: with, for each, what it held and the input that stands for it.
    """
    for each, pairs in lists:
        _exchange(each, pairs)
    try:
        yield
    finally:
        for each, pairs in lists:
            _exchange(each, [(given, first) for first, given in pairs if first is not None])


def _exchange(values: list[Any], pairs: list[tuple[Any, Any]]) -> None:
    instead = {id(old): new for old, new in pairs if old is not None}
    values[:] = [instead.get(id(value), value) for value in values]


def _held(value: Any) -> Callable[[], Any]:
    import torch

    return weakref.ref(value) if isinstance(value, torch.Tensor) else lambda: None


def flattening(function: Any, shapes: list[Any]) -> Callable[..., Any]:
    """``function`` without tuples that would hide all tensors of its result; ``shapes`` gets its form."""

    def call(*args: Any) -> Any:
        result = function(*args)
        leaves = _leaves(result)
        if type(result) is not tuple or any(map(_floating, result)) or not any(map(_floating, leaves)):
            return result
        shapes[:] = [_shape(result)]
        return tuple(leaves)

    return call


def _leaves(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in _leaves(part)] if type(value) is tuple else [value]


def _hold_one(value: Any) -> bool:
    """Whether it is, or holds, a tensor that requires grad."""
    parts = [part for leaf in _leaves(value) for part in (leaf if type(leaf) is list else [leaf])]
    return any(map(_requires_grad, parts))


def _shape(value: Any) -> Any:
    """The tuples of ``value`` with nothing in them."""
    return tuple(map(_shape, value)) if type(value) is tuple else None


def _filled(shape: Any, leaves: Iterator[Any]) -> Any:
    return tuple(_filled(part, leaves) for part in shape) if type(shape) is tuple else next(leaves)


def trains(function: Any) -> bool:
    """Whether ``function`` runs a block of a model that transformers made, with something to train."""
    return any(
        str(type(module).__module__).partition(".")[0] in MODELS
        and any(parameter.requires_grad for parameter in module.parameters())
        for module in blocks_of(function)
    )


def _taking(function: Any, names: tuple[str, ...]) -> Callable[..., Any]:
    """``function`` with the keywords ``names`` as its first arguments."""
    rest = {name: value for name, value in function.keywords.items() if name not in names}
    inner = functools.partial(function.func, *function.args, **rest)

    def call(*values: Any) -> Any:
        return inner(*values[len(names) :], **dict(zip(names, values, strict=False)))

    return call


def _requires_grad(value: Any) -> bool:
    import torch

    if not isinstance(value, torch.Tensor):
        return False
    with torch._C.DisableTorchFunction():  # a mode or a subclass of a script may count what it sees
        return bool(value.requires_grad)


def _floating(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _with_grad(tensor: Any) -> Any:
    # A new leaf over the same storage: the caller's tensor stays as it is.
    return tensor.detach().requires_grad_()
