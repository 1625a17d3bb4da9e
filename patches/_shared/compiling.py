"""Whether torch.compile is tracing what runs, on every torch."""

from __future__ import annotations

from collections.abc import Callable


def compiling() -> Callable[[], bool]:
    """``torch.compiler.is_compiling``, or what torch before 2.3 has in its place."""
    import torch

    asked: Callable[[], bool] = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling
    return asked
