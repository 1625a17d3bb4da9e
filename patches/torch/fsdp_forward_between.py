"""FSDP1: a forward without the adapter before the backward takes the gradients of checkpointed blocks.

What the user sees: DPO with LoRA and no reference model of its own (TRL asks the policy once more under
``disable_adapter()`` and ``no_grad``) under FSDP1 with ``use_orig_params`` and checkpointing: parameters of
checkpointed blocks get no gradient, without a word (all 44 of a small Qwen2-VL), or, with the non-reentrant
variant, ``CheckpointError: A different number of tensors was saved``.

Why: a forward notes the views of its unit's parameters, and the recompute uses what was noted last. A unit in
which nothing is trained at the moment, as PEFT leaves it without its adapter, has views that lead to no
gradient: what the recompute computes from them ends in tensors that nobody reads.

In every torch with ``use_orig_params``, up to 2.15.

The change: views that lead to a gradient stay noted until the backward that needs them has cleared them; a
forward without gradients uses its own and notes none in their place.

Left alone: forwards with gradients, evaluations with no forward open, units without ``use_orig_params``.

Upstream: https://github.com/pytorch/pytorch/blob/v2.8.0/torch/distributed/fsdp/_flat_param.py
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

CLASS = "FlatParamHandle"
NAME = "_use_unsharded_views"
NOTED = "self.flat_param._tensors[i] = view"


def look(code: Code) -> str | None:
    """What a forward notes must be known, and where."""
    function = code.function(f"{CLASS}.{NAME}")
    if function is None or NOTED not in function:
        raise Unrecognised(f"{CLASS}.{NAME} in {code.path} is not as any known release has it")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Note again what was noted before, where it leads to a gradient."""
    import torch

    forward = module.HandleTrainingState.FORWARD

    def _use_unsharded_views(original: Callable[..., None], self: Any, /, as_params: bool) -> None:
        noted = self.flat_param._tensors if self._use_orig_params else None
        if as_params or not noted or torch.is_grad_enabled() or self._training_state != forward:
            original(self, as_params)
            return
        before = [*noted]
        original(self, as_params)
        for place, view in enumerate(before):
            if view is not None and view.grad_fn is not None:
                noted[place] = view

    patch.wrap(getattr(module, CLASS), NAME, _use_unsharded_views)
