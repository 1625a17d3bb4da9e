"""One number of all that a model puts out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

CACHES = (
    *("past_key_values", "cache"),  # the second from transformers 5.24 on
    *("hidden_states", "attentions", "cross_attentions", "decoder_hidden_states"),
)


def value(outputs: Any) -> Any:
    """A number that depends on everything the model puts out, but for what it also keeps."""
    import torch

    total = None
    for tensor in _put_out(outputs):
        weight = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1))
        term = (tensor.float() * weight).sum() / tensor.numel() ** 0.5
        total = term if total is None else total + term
    if total is None:
        raise ValueError("nothing that it puts out requires grad")
    return total


def size(outputs: Any) -> float:
    """How large what goes into that number is: it may be small by chance, and all of it rounding."""
    return float(sum(tensor.norm() / tensor.numel() ** 0.5 for tensor in _put_out(outputs)))


def _put_out(outputs: Any) -> Iterator[Any]:
    import torch

    found = False
    named = outputs.items() if hasattr(outputs, "items") else enumerate(_flat(outputs))
    for name, part in named:
        for tensor in () if name in CACHES else _flat(part):
            if torch.is_floating_point(tensor) and tensor.requires_grad and tensor.numel():
                found = True
                yield tensor
    for part in () if found else outputs.values() if hasattr(outputs, "values") else ():
        if hasattr(part, "items"):  # what its parts put out, and nothing beside
            yield from _put_out(part)


def _flat(part: Any) -> list[Any]:
    import torch

    if isinstance(part, torch.Tensor):
        return [part]
    return [tensor for each in part for tensor in _flat(each)] if isinstance(part, (list, tuple)) else []
