"""What a call of torch's checkpoint runs: the blocks that its function is bound to."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CellType, FunctionType, MethodType
from typing import Any


def blocks_of(function: Any, depth: int = 3) -> Iterator[Any]:
    """The modules that a call of ``function`` is bound to, by what people write around a block."""
    import torch

    if isinstance(function, torch.nn.Module):
        yield function
    elif depth:
        around: list[Any] = [function.__self__] if isinstance(function, MethodType) else []
        if isinstance(function, functools.partial):
            around += [function.func, *function.args]
        if isinstance(function, FunctionType):
            around += [_content(cell) for cell in function.__closure__ or ()]
        for inner in around:
            if isinstance(inner, torch.nn.Module) or callable(inner):
                yield from blocks_of(inner, depth - 1)


def bound_to(function: Any, name: str, depth: int = 3) -> Any:
    """What ``function`` is called with by the keyword ``name``, said by a ``partial`` anywhere around it."""
    if isinstance(function, functools.partial):
        if name in function.keywords:
            return function.keywords[name]
        around: list[Any] = [function.func]
    elif isinstance(function, FunctionType):
        around = [_content(cell) for cell in function.__closure__ or ()]
    else:
        return None
    if not depth:
        return None
    found = (bound_to(inner, name, depth - 1) for inner in around)
    return next((value for value in found if value is not None), None)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
