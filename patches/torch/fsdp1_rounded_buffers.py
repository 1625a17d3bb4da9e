"""Nothing is printed: FSDP1 rounds frequencies of rotary positions and biases of routers to 16 bits.

What the user sees: nothing. A training under FSDP1 with ``bf16`` or ``fp16`` by HF Trainer, TRL, ms-swift
or accelerate learns with other positions than the model has without FSDP: an angle is a position times a
frequency, and of a frequency with eight bits a position of a thousand is radians off. It grows with the
length of a row: in a tiny Qwen2-VL with sharp attention, the logits of a row of 1,500 tokens are 0.48 of
the largest off. And GLM-4.5V's routers choose other experts, where biases are nearer to each other than eight
bits tell.

Why: accelerate's mixed precision names the dtype for buffers as well, and FSDP1 casts every floating buffer
to it before its first forward. transformers computes with them in float32, from what the rounding has left.

Every release: accelerate to 1.15.0, torch to 2.15. FSDP2 casts no buffers.

The change: these two kinds of buffers, in transformers' own modules, are moved and not cast. Left alone:
frequencies that meet weights as they are (BROS, CLVP); modules of a script or a checkpoint; every other
buffer.

https://github.com/huggingface/transformers/pull/29285 tells of the same rounding by autocast.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/_runtime_utils.py
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.float32_buffers import float32_buffers

NAME, CAST = "_get_buffers_and_dtypes_for_computation", "_cast_buffers_to_dtype_and_device"
ROOT = Argument(1, "root_module")


def look(code: Code) -> str | None:
    """It must hand a dtype for each buffer to what casts them, which takes none for no cast."""
    names, casts = code.function(NAME), code.function(CAST)
    if names is None or casts is None or "return buffers, buffer_dtypes" not in names:
        raise Unrecognised(f"{NAME} in {code.path} is not as any known release has it")
    if "buffer_dtype is None" not in casts:
        raise Unrecognised(f"{CAST} in {code.path} is not as any known release has it")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Name no dtype for them."""

    def dtypes(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        import torch

        known = float32_buffers(ROOT.of(args, kwargs))
        # One that a script has rounded may be asked for in float32.
        kept = {id(each.value) for each in known if each.value.dtype == torch.float32}
        buffers, named = original(*args, **kwargs)
        return buffers, [None if id(b) in kept else dtype for b, dtype in zip(buffers, named, strict=True)]

    patch.wrap(module, NAME, dtypes)
