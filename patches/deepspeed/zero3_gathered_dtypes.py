"""``output tensor must have the same type as input tensor`` in ``_allgather_params_coalesced``, under ZeRO-3.

What the user sees: that error where a model has weights of several dtypes; over gloo ``invalid tensor type at
index 0``. With QLoRA or ``load_in_8bit`` (bytes, beside biases and norms) HF Trainer ends at its first save,
hours into the run, with ``stage3_gather_16bit_weights_on_model_save``; a small model, whose weights ZeRO-3
keeps whole, in the first step of the optimizer, and so does LoRA in float32 on a model in bf16 on 0.19.2.

Why: what several weights are gathered into is made in the dtype of the first of them, and the collective
refuses the others. A module's own weights are gathered together when a state dict is put together, all that
are kept whole after each step.

The change: the weights are gathered dtype by dtype, in the order in which every rank meets them. Of a single
dtype, as nearly always, DeepSpeed gathers them in one call as ever.

Since DeepSpeed 0.12.6 at least, until 0.19.2.
https://github.com/deepspeedai/DeepSpeed/issues/8072 fixed by https://github.com/deepspeedai/DeepSpeed/pull/8073;
https://github.com/deepspeedai/DeepSpeed/issues/4295 is the same of QLoRA.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

NAME = "_allgather_params_coalesced"
OF_THE_FIRST = "dtype=param_list[0].ds_tensor.dtype"
WEIGHTS = Argument(0, "param_list")


def look(code: Code) -> str | None:
    """The buffers must be made in the dtype of the first weight."""
    function = code.function(f"Init.{NAME}")
    if function is None:
        raise Unrecognised(f"{code.module} has no Init.{NAME}")
    return None if OF_THE_FIRST in function else "each weight is gathered in its own dtype"


def apply(patch: Patch, module: ModuleType) -> None:
    """Gather weights of one dtype at a time."""

    def gather(original: Callable[..., Any], /, self: Any, *args: Any, **kwargs: Any) -> Any:
        weights = WEIGHTS.of(args, kwargs)
        by_dtype: dict[Any, list[Any]] = {}
        for weight in weights:
            by_dtype.setdefault(weight.ds_tensor.dtype, []).append(weight)
        if len(by_dtype) < 2:
            return original(self, *args, **kwargs)
        for alike in by_dtype.values():
            positional, named = WEIGHTS.replaced(args, kwargs, alike)
            original(self, *positional, **named)
        return None

    patch.wrap(module.Init, NAME, gather)
