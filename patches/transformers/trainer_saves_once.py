"""A Trainer whose ``_save`` does not use the state dict it is given hangs, or writes empty tensors.

What the user sees: 100 %, then a watchdog time-out (NCCL) or ``Connection closed by peer`` (gloo); or
``torch.Size([0])`` in the file; or, with ``stage3_gather_16bit_weights_on_model_save: false``, an
``adapter_model.safetensors`` without a tensor in it.

Why: ``Trainer.save_model`` gathers on every rank and then calls ``_save`` on rank 0 only, with the result. A
``_save`` of a script's own that calls ``self.model.save_pretrained(output_dir)`` leaves the result aside,
and nobody is there to gather a second time. Where gathering is switched off, the result is empty.

What is done: what the Trainer has gathered stays at hand until its ``save_model`` ends, and a
``save_pretrained`` without a state dict takes that. Where the Trainer was told not to gather, an adapter,
which is small, is gathered for it; anything else is saved as the Trainer saves it then, without weights,
beside DeepSpeed's own checkpoint.

Every transformers. Upstream: https://github.com/OpenBMB/MiniCPM-V/issues/533,
https://github.com/2U1/Qwen-VL-Series-Finetune
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.zero3_parameters import any_absent, whole
from .._shared.zero3_state_dict import handing_over

GATHER = "_zero3_consolidated_16bit_state_dict"


def look(code: Code) -> str | None:
    """Saving must go through one method that hands ``_save`` a state dict."""
    save = code.function("Trainer.save_model")
    if save is None or "state_dict=state_dict" not in save:
        raise Unrecognised("Trainer.save_model does not hand _save a state_dict")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Keep what was gathered until the save is over."""

    def save_model(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        engine: Any = getattr(self, "deepspeed", None)
        inner = getattr(engine, "module", None)
        if inner is None or not hasattr(engine, GATHER) or not any_absent(inner):
            return original(self, *args, **kwargs)
        with handing_over(inner) as hand:
            if not engine.zero_gather_16bit_weights_on_model_save():
                hand_adapter(inner, hand)
                return original(self, *args, **kwargs)
            with patch.swapped(engine, GATHER, kept(getattr(engine, GATHER), hand)):
                return original(self, *args, **kwargs)

    patch.wrap(module.Trainer, "save_model", save_model)


def kept(gather: Callable[..., Any], hand: Callable[[Any], None]) -> Callable[..., Any]:
    """``gather``, whose result is handed over too; None on ranks other than 0."""

    def gathering(*args: Any, **kwargs: Any) -> Any:
        state = gather(*args, **kwargs)
        hand(state)
        return state

    return gathering


def hand_adapter(model: Any, hand: Callable[[Any], None]) -> None:
    """Hand over the trainable part of a PeftModel, nothing of another model; takes every rank."""
    peft = sys.modules.get("peft")
    if peft is None or not isinstance(model, peft.PeftModel):
        hand({})
        return
    state = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if not value.requires_grad:
            continue
        with whole([value], changed=False):
            state[name] = value.detach().cpu().clone()
    hand(state)
