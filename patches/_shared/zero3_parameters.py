"""Parameters of which this rank holds a part only: told, and made whole for the length of a block.

DeepSpeed marks them: ``ds_id`` says that a parameter is partitioned at all, ``ds_status`` whether its
values are here at the moment. Where they are not its shape is ``(0,)``; ``ds_shape`` is that of the whole.
``deepspeed.zero.GatheredParameters`` partitions at its end whatever it was given, so it is given only what is
not here: what the caller has gathered stays gathered.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

MODULE = "deepspeed.runtime.zero.partition_parameters"
# What torch tells of a tensor without looking at its values or its shape.
METADATA = frozenset(
    {"device", "dtype", "requires_grad", "is_meta", "is_leaf", "grad", "grad_fn", "layout", "is_cuda"}
    | {"is_sparse", "is_quantized", "is_cpu", "names", "_backward_hooks", "_version", "retains_grad"}
)


def absent(value: Any) -> bool:
    """Whether ``value`` is a parameter whose values are not on this rank at the moment."""
    status = getattr(value, "ds_status", None)
    return status is not None and getattr(status, "name", None) == "NOT_AVAILABLE"


def any_absent(module: Any) -> bool:
    """Whether ``module`` or a child of it has such a parameter; none of them is called to say so."""
    return MODULE in sys.modules and any(map(absent, _held_by(module)))


def _held_by(module: Any) -> Iterator[Any]:
    seen, left = set(), [module]
    while left:
        part = left.pop()
        if part is not None and id(part) not in seen:
            seen.add(id(part))
            held = vars(part)
            yield from held["_parameters"].values() if "_parameters" in held else ()
            left += held["_modules"].values() if "_modules" in held else ()


def gather_group(parameter: Any) -> Any:
    """The process group that a gather of ``parameter`` takes now.

    With hpZ that is the node, where it has a second copy: of a frozen parameter from its first forward on, of
    a trained one from its forward to its step.
    """
    copied = getattr(parameter, "ds_secondary_tensor", None) is not None
    return parameter.ds_zero_param_process_group if copied else parameter.ds_process_group


@contextlib.contextmanager
def whole(parameters: Iterable[Any], *, changed: bool) -> Iterator[None]:
    """``parameters`` are whole inside, of the shape ``ds_shape``; takes every rank.

    Args:
        parameters: those of them that are not here are gathered, the others left alone.
        changed: whether rank 0's values are to be kept afterwards, on every rank.
    """
    missing = [parameter for parameter in parameters if absent(parameter)]
    if not missing:
        yield
        return
    gathered = vars(sys.modules[MODULE])["GatheredParameters"]
    with gathered(missing, modifier_rank=0 if changed else None):
        yield


@contextlib.contextmanager
def whole_when_touched(*, changed: bool) -> Iterator[None]:
    """Inside, a parameter is gathered where a torch function is first called on it; takes every rank."""
    with contextlib.ExitStack() as gathered:

        def touched(parameter: Any) -> None:
            gathered.enter_context(whole([parameter], changed=changed))

        with told_of_touches(touched):
            yield


@contextlib.contextmanager
def told_of_touches(touched: Callable[[Any], None]) -> Iterator[None]:
    """Inside, a parameter that is not here is told to ``touched`` before a torch function is called on it.

    Not by DeepSpeed's own gathering: a forward may gather by itself.
    """
    from torch.overrides import TorchFunctionMode

    class Touches(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if not _only_metadata(function) and sys._getframe(1).f_globals.get("__name__") != MODULE:
                for parameter in _parameters((*args, *kwargs.values())):
                    touched(parameter)
            return function(*args, **kwargs)

    with Touches():
        yield


def _parameters(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _parameters(value)
        elif absent(value):
            yield value


def _only_metadata(function: Any) -> bool:
    attribute = getattr(getattr(function, "__self__", None), "__name__", "")
    return getattr(function, "__name__", "") == "__get__" and attribute in METADATA
