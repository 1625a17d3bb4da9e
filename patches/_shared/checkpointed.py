"""What a call of torch's checkpoint runs: the blocks that its function is bound to."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CellType, FunctionType
from typing import Any


def blocks_of(function: Any, depth: int = 3) -> Iterator[Any]:
    """The modules that a call of ``function`` is bound to, by what people write around a block."""
    import torch

    if isinstance(function, torch.nn.Module):
        yield function
    elif depth:
        around: list[Any] = [getattr(function, "__self__", None)]
        if isinstance(function, functools.partial):
            around += [function.func, *function.args]
        if isinstance(function, FunctionType):
            around += [_content(cell) for cell in function.__closure__ or ()]
        for inner in around:
            if isinstance(inner, torch.nn.Module) or callable(inner):
                yield from blocks_of(inner, depth - 1)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
