"""What a call of torch's checkpoint runs: the blocks that its function is bound to."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CellType, FunctionType, MethodType
from typing import Any


def blocks_of(function: Any, depth: int = 3) -> Iterator[Any]:
    """The modules that a call of ``function`` is bound to, by what people write around a block."""
    import torch

    if _is(function, torch.nn.Module):
        yield function
    elif depth:
        for inner in _around(function):
            yield from blocks_of(inner, depth - 1)


def all_blocks_of(function: Any, most: int = 32) -> Iterator[Any]:
    """The same however deep they are, behind the functions that patches put around those of others.

    Args:
        function: that is called.
        most: functions that are looked into, those that are the nearest first.
    """
    import torch

    left = [function]
    seen: set[int] = set()
    for inner in left:  # which grows meanwhile
        if id(inner) in seen or len(seen) == most:
            continue
        seen.add(id(inner))
        if _is(inner, torch.nn.Module):
            yield inner
        else:
            left += _around(inner)


def _around(function: Any) -> list[Any]:
    """What may be called by ``function``, as far as it is bound to it."""
    around: list[Any] = [function.__self__] if _is(function, MethodType) else []
    if _is(function, functools.partial):
        around += [function.func, *function.args]
    if _is(function, FunctionType):
        around += [_content(cell) for cell in function.__closure__ or ()]
    return [inner for inner in around if callable(inner)]


def bound_to(function: Any, name: str, depth: int = 3) -> Any:
    """What ``function`` is called with by the keyword ``name``, said by a ``partial`` anywhere around it."""
    if _is(function, functools.partial):
        if name in function.keywords:
            return function.keywords[name]
        around: list[Any] = [function.func]
    elif _is(function, FunctionType):
        around = [_content(cell) for cell in function.__closure__ or ()]
    else:
        return None
    if not depth:
        return None
    found = (bound_to(inner, name, depth - 1) for inner in around)
    return next((value for value in found if value is not None), None)


def _is(value: Any, kind: type) -> bool:
    """Asked of what a function happens to know, too: a proxy may raise where it is asked what it is."""
    try:
        return isinstance(value, kind)
    except Exception:
        return False


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
