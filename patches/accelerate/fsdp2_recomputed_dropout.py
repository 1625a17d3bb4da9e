"""Nothing is printed: under FSDP2 a checkpointed layer draws its dropout anew when it is computed again.

What the user sees: nothing. A training under FSDP2 with ``activation_checkpointing: true`` in ``fsdp_config``
(or ``fsdp_activation_checkpointing`` for ``accelerate launch``) and dropout in the model, as ``lora_dropout``
is, learns from gradients of other masks than those its losses are of. A tiny Qwen2-VL with LoRA is 1.5 off,
of each tensor's largest entry, in its first step.

Why: accelerate wraps the layers with ``preserve_rng_state=False``. The recomputation in the backward then
goes on with the random numbers where the forward ended, and drops other entries.

Since accelerate 1.8.0, which brought ``fsdp2_apply_ac``; 1.15.0 has it. FSDP1, and a model's own
``gradient_checkpointing_enable()``, keep the state.

The change: it is kept, which is torch's default. Without dropout nothing is drawn, and no number changes.

No upstream report was found; https://github.com/allenai/OLMo-core/pull/828 fixed the same in another library.
https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/fsdp_utils.py
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

NAME, WRAPPER = "fsdp2_apply_ac", "checkpoint_wrapper"
STATE = "preserve_rng_state"


def look(code: Code) -> str | None:
    """It must wrap the layers and throw the state away."""
    checkpoints = code.function(NAME)
    if checkpoints is None:
        return f"this accelerate has no {NAME}"
    if WRAPPER not in checkpoints:
        raise Unrecognised(f"{NAME} in {code.path} is not as any known release has it")
    return None if f"{STATE}=False" in checkpoints else "the state of random numbers is kept"


def apply(patch: Patch, module: ModuleType) -> None:
    """Keep the state for the layers that it wraps."""

    def checkpoint(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers

        with patch.swapped(wrappers, WRAPPER, keeping(wrappers.checkpoint_wrapper)):
            return original(*args, **kwargs)

    patch.wrap(module, NAME, checkpoint)


def keeping(wrap: Callable[..., Any]) -> Callable[..., Any]:
    """``wrap`` that keeps the state of random numbers, whatever it is told of it."""

    @functools.wraps(wrap)
    def wrap_keeping(*args: Any, **kwargs: Any) -> Any:
        return wrap(*args, **{**kwargs, STATE: True})

    return wrap_keeping
