"""``AttributeError: 'Tensor' object has no attribute 'device_mesh'`` where FSDP2 is set up.

What the user sees: that error below ``fsdp2_load_full_state_dict``, from ``Accelerator.prepare`` or
``Trainer.train``, of a model that has buffers in its checkpoint: Gemma 4 (``layer_scalar``), GLM-4.5V,
DeepSeek-V3 and V4 (``e_score_correction_bias``). Without ``cpu_ram_efficient_loading``, which is on by
default, it trains.

Why: the first rank hands every entry of the state dict to the others, and takes each for a sharded parameter.
Buffers are not sharded.

Since accelerate 1.7, which called CUDA by name; run on 1.8.1, 1.10.1, 1.12.0 and 1.15.0, which has it.

The change: while entries are handed out, buffers are none; then the first rank hands its buffers to the
others, and they are loaded as entries are. Left alone: a model without buffers in its checkpoint, whose
entries are handed out as before.

Upstream: https://github.com/huggingface/accelerate/issues/3898,
https://github.com/huggingface/accelerate/pull/3921, https://github.com/huggingface/accelerate/pull/4023
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.saved_buffers import UNSAVED, saved_buffers

NAME = "fsdp2_load_full_state_dict"
PARAMETERS = ("accelerator", "model", "full_sd")
ACCELERATOR, MODEL, WHOLE = (Argument(at, name) for at, name in enumerate(PARAMETERS))
TAKES_ALL, TELLS = "device_mesh = sharded_param.device_mesh", "isinstance(sharded_param, DTensor)"


def look(code: Code) -> str | None:
    """It must take each entry for a sharded parameter."""
    load = code.function(NAME)
    if load is None:
        return f"this accelerate has no {NAME}"
    if TELLS in load:
        return "what is not sharded is loaded too"
    if TAKES_ALL not in load or load.parameters[:3] != PARAMETERS:
        raise Unrecognised(f"{NAME} loads as in no known release")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Load buffers after parameters."""

    def load(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        model, whole = MODEL.of(args, kwargs), WHOLE.of(args, kwargs)
        saved = saved_buffers(model)
        buffers = {name: each for name, each in saved if name in whole and not is_sharded(each)}
        if not buffers:
            return original(*args, **kwargs)
        rest = {name: tensor for name, tensor in whole.items() if name not in buffers}
        parameters, named = WHOLE.replaced(args, kwargs, rest)
        with _unsaved(patch, model):
            found = original(*parameters, **named)
        accelerator = ACCELERATOR.of(args, kwargs)
        model.load_state_dict(handed_out(accelerator, buffers, whole), strict=False, assign=True)
        return found

    patch.wrap(module, NAME, load)


@contextlib.contextmanager
def _unsaved(patch: Patch, model: Any) -> Iterator[None]:
    """Inside, ``model`` has no buffers in its state dict but those that are sharded."""
    with contextlib.ExitStack() as swapped:
        for module in model.modules():
            before: set[str] = getattr(module, UNSAVED)
            whole = {name for name, buffer in module._buffers.items() if not is_sharded(buffer)}
            if whole - before:
                swapped.enter_context(patch.swapped(module, UNSAVED, before | whole))
        yield


def is_sharded(buffer: Any) -> bool:
    """Whether it has a mesh, as parameters have: tensor parallelism gives buffers one too."""
    return hasattr(buffer, "device_mesh")


def handed_out(accelerator: Any, buffers: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """The first rank's values of ``buffers``, on every rank, each of which comes here as to all before."""
    import torch

    loaded = {}
    for name, buffer in buffers.items():
        if accelerator.is_main_process:
            value = whole[name].detach().to(accelerator.device, buffer.dtype).contiguous()
        else:
            value = torch.empty(buffer.shape, dtype=buffer.dtype, device=accelerator.device)
        torch.distributed.broadcast(value, src=0)
        loaded[name] = value
    return loaded
