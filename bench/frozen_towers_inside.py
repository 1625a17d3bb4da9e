"""What ``bench.frozen_towers`` runs inside a stack: a line of JSON a setting; ``--patched`` with vlmpatch."""

from __future__ import annotations

import json
import sys
from typing import Any

if "--patched" in sys.argv:
    import vlmpatch  # noqa: F401

import torch

from vlmpatch_lab import models

KWARGS = {"use_reentrant": False}


def held(input_grads: bool, tower: bool, frozen: bool) -> dict[str, Any]:
    """Bytes that autograd keeps of the tower's forward, and whether the tower's output is in the graph.

    Args:
        input_grads: ``enable_input_require_grads()`` was called, as frameworks do.
        tower: the tower is checkpointed, beside the language model.
        frozen: the tower's parameters are.
    """
    torch.manual_seed(0)
    model = models.qwen("qwen2_vl", "step").train()
    visual = getattr(model, "visual", None) or model.model.visual
    visual.requires_grad_(not frozen)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=KWARGS)
    for module in visual.modules() if not tower else ():
        if hasattr(module, "gradient_checkpointing"):
            module.gradient_checkpointing = False
    if input_grads:
        model.enable_input_require_grads()
    kept: dict[int, int] = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def ended(output: Any) -> None:
        outputs.append(output)
        hooks.__exit__()

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    outputs: list[Any] = []
    visual.register_forward_pre_hook(lambda *_: hooks.__enter__())
    visual.register_forward_hook(lambda *given: ended(given[-1]))
    model(**models.batch("step", 12, seed=0)).loss.backward()
    graph = any(tensor.requires_grad for tensor in _tensors(outputs))
    return {"bytes": sum(kept.values()), "graph": graph}


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if hasattr(value, "values") else value if isinstance(value, (list, tuple)) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


if __name__ == "__main__":
    for frozen in (True, False):
        for input_grads in (False, True):
            for tower in (False, True):
                setting = {"frozen": frozen, "input_grads": input_grads, "tower": tower}
                print(json.dumps(setting | held(**setting)), flush=True)
