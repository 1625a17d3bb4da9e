"""Blocks whose tokens go to some of their experts only, recognised by structure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_ROUTERS = ("gate", "router", "shared_expert_gate")


def sparse_blocks(model: Any) -> Iterator[Any]:
    """Modules of ``model`` that hold a router and a list of experts, a module an expert.

    From transformers 5 on experts are one parameter for all of them: nothing there is ever unused.
    """
    import torch

    for module in model.modules():
        children = module._modules
        if any(name in _ROUTERS and child is not None for name, child in children.items()):
            lists = (c for n, c in children.items() if "expert" in n and isinstance(c, torch.nn.ModuleList))
            if any(_alike(experts) for experts in lists):
                yield module


def _alike(experts: Any) -> bool:
    """DeepSeek leaves ``None`` where an expert lives on another rank."""
    own = [expert for expert in experts if expert is not None]
    return (
        len(own) > 1 and len({type(expert) for expert in own}) == 1 and any(True for _ in own[0].parameters())
    )
