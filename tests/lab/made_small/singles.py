"""What single families need that no rule can know, by transformers' folder or by class: a table.

A class's own entry is added to its folder's sizes, and takes the place of its folder's inputs. A size that is
a dictionary belongs to that part of the configuration; where the class has no such part, it is said as it is.
Of the inputs a class gets those that its forward takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Drawn = Callable[[Any], Any]  # what a model with this configuration gets
SIZES: dict[str, dict[str, Any]] = {}


def ids(*shape: int) -> Drawn:
    """Tokens."""

    def drawn(_: Any) -> Any:
        import torch

        return torch.randint(5, 100, shape)

    return drawn


def some(*shape: int) -> Drawn:
    """Numbers; with a gradient, as an embedding would make them."""

    def drawn(_: Any) -> Any:
        import torch

        return torch.randn(shape).requires_grad_()

    return drawn


def ones(*shape: int) -> Drawn:
    """A mask that leaves all in."""

    def drawn(_: Any) -> Any:
        import torch

        return torch.ones(shape, dtype=torch.long)

    return drawn


def just(*values: Any) -> Drawn:
    """A tensor of these."""

    def drawn(_: Any) -> Any:
        import torch

        return torch.tensor(values)

    return drawn


INPUTS: dict[str, dict[str, Drawn]] = {}


def folder(kind: Any) -> str:
    """Transformers' folder that has the class."""
    parts: list[str] = kind.__module__.split(".")
    return parts[2] if parts[:2] == ["transformers", "models"] and len(parts) > 2 else ""


def sizes(kind: Any) -> dict[str, Any]:
    """What the configuration of ``kind`` has to say."""
    return {**SIZES.get(folder(kind), {}), **SIZES.get(kind.__name__, {})}


def inputs(model: Any, names: Any) -> dict[str, Any]:
    """What the model is known to take, of the arguments ``names``; empty where nothing is known."""
    kind = type(model)
    known = INPUTS.get(kind.__name__, INPUTS.get(folder(kind), {}))
    return {name: drawn(model.config) for name, drawn in known.items() if name in names}
