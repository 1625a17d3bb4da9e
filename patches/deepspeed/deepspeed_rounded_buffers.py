"""Nothing is printed: in bf16 or fp16 DeepSpeed rounds frequencies of rotary positions and biases of
routers.

What the user sees: nothing. A training in bf16 or fp16 under any stage of ZeRO learns with other positions
than the model has without DeepSpeed: an angle is a position times a frequency, and of a frequency with
eight bits a position of a thousand is radians off. It grows with the length of a row: in a tiny Qwen2-VL
with sharp attention, the logits of a row of 1,500 tokens are 0.48 of the largest off. And GLM-4.5V's
routers choose other experts, where biases are nearer to each other than eight bits tell.

Why: the engine casts the whole model, buffers included; transformers computes with them in float32, from
what the rounding has left. And under ZeRO-3 ``zero.Init`` casts whatever is made in it: the vision towers
of transformers 4 make their frequencies of a ``torch.arange`` in float32, which it hands out in 16 bits, in
every release. transformers 5 makes them once more.

Since the first release. The first of the two ended with https://github.com/deepspeedai/DeepSpeed/pull/8066,
which 0.19.2 has; the second is in 0.19.8.

The change: once the engine has cast the model, these two kinds of buffers are what they were, in
transformers' own modules; frequencies that ``zero.Init`` rounded are computed again, by their class.
Left alone: biases that transformers 4 loaded under ZeRO-3, which came rounded; what a script has rounded;
frequencies that meet weights as they are (BROS, CLVP); modules of a script or a checkpoint; every other
buffer; all of them where ``data_types`` names a ``buffer_dtype``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised, signature

from .._shared.float32_buffers import FREQUENCIES, Buffer, float32_buffers

CONFIGURE = "_configure_distributed_model"
METHOD = f"DeepSpeedEngine.{CONFIGURE}"
MODEL = Argument(0, "model")
NEAR = 0.03  # of a frequency: computed in bf16 from end to end it is nearer


def look(code: Code) -> str | None:
    """The engine must cast the model where it is configured."""
    configures = code.function(METHOD)
    if configures is None or "model" not in configures.parameters:
        raise Unrecognised(f"{METHOD} in {code.path} is not as any known release has it")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Put whole buffers back."""
    patch.wrap(module.DeepSpeedEngine, CONFIGURE, configure)


def configure(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around the method that casts the model."""
    model = MODEL.of(args, kwargs)
    before = list(float32_buffers(model))
    made_low = any(hasattr(parameter, "ds_id") for parameter in model.parameters())  # in zero.Init
    result = original(self, *args, **kwargs)
    if getattr(self._config, "buffer_dtype", None) is None:
        for each in before:
            put_back(each, made_low)
    return result


def put_back(each: Buffer, made_low: bool) -> None:
    """In float32, if it was, or ``zero.Init`` made it otherwise and it can be computed again."""
    import torch

    whole = each.value
    if whole.dtype != torch.float32:
        whole = computed_again(each) if made_low else None
    now = each.module._buffers[each.name]
    if whole is not None and now.dtype != torch.float32:
        each.module._buffers[each.name] = whole.to(now.device)


def computed_again(each: Buffer) -> Any:
    """What the module's class makes of the number of frequencies, if that is nearly what there is."""
    import torch

    kind = type(each.module)
    if each.name != FREQUENCIES or list(signature(kind).parameters) != ["dim", "theta"]:
        return None
    whole = getattr(kind(2 * each.value.numel()), FREQUENCIES)
    return whole if torch.allclose(whole, each.value.float().cpu(), rtol=NEAR) else None
