"""What a rank writes down of a model: gradients, parameters, and a hash of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch

from vlmpatch_lab.engines import Engine, Fsdp1

Gradients = dict[str, torch.Tensor]


def gradients(engine: Engine, model: torch.nn.Module) -> Gradients:
    """The full gradient of every trainable parameter; a parameter without one is left out."""
    found = {}
    for name, parameter in trainable(model):
        gradient = engine.gradient(parameter)
        if gradient is not None:
            found[name] = gradient.detach().float().cpu().clone()
    return found


def parameters(model: torch.nn.Module) -> Gradients:
    """The full value of every trainable parameter."""
    return {name: value_of(p).detach().float().cpu().clone() for name, p in trainable(model)}


def trainable(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """By the names that the model gave them."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name.replace(Fsdp1.INSIDE, ""), parameter


def value_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The whole of a parameter, its master copy where DeepSpeed keeps one."""
    # Under ZeRO-3 gathering the parameter itself would have to free it. In float32 it is its own master copy.
    low = hasattr(parameter, "_hp_mapping") and parameter.dtype != torch.float32
    if hasattr(parameter, "ds_id") or low:
        return master_copy(parameter)
    sharded: Any = parameter
    return sharded.full_tensor() if hasattr(sharded, "full_tensor") else parameter


def master_copy(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The whole of what DeepSpeed's optimizer keeps of a parameter, in float32."""
    import deepspeed

    value: torch.Tensor = deepspeed.utils.safe_get_full_fp32_param(parameter)
    return value


def digest(model: torch.nn.Module) -> str:
    """A hash of all trainable values: equal on two ranks only when every bit is."""
    total = hashlib.sha256()
    for name, parameter in trainable(model):
        # Under ZeRO-3 the master copy: gathering the parameter itself would have to free it.
        partitioned = hasattr(parameter, "ds_id")
        value: Any = master_copy(parameter) if partitioned else parameter
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        # A copy: FSDP1 frees what it gathered, which numpy would still hold.
        total.update(name.encode() + value.detach().float().cpu().clone().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]
