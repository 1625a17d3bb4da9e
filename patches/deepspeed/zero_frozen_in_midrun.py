"""ZeRO went on updating a parameter that was frozen in the middle of a run.

What the user sees: nothing. After ``requires_grad_(False)`` in the middle of a run (a tower trained for the
first steps alone) its weights move on: with AdamW 15 % of what the run moved most after two steps, 68 % after
more. With ``offload_optimizer`` the last gradient is applied again in every step, whatever the optimizer.

Why: an optimizer passes over a parameter without a gradient. ZeRO gives it a flat partition of many
parameters, in which what has no gradient has a zero, or offloaded the last one it had: momentum and weight
decay act on it.

What is done: where something of a partition is frozen and its gradient there is zero, its weights and its
share of the optimizer's state are put back after the partition's step. One that was frozen after a backward
of the window still gets that window's update, as in plain torch; in ZeRO-3, which drops what it had, only
where the window was over. That an offloaded partition has a zero there is seen to by
``zero-uneven-gradients`` and ``zero3-stale-gradients``.

The optimizer's count of steps belongs to the partition: it counts on while a parameter is frozen.

Left alone: ZenFlow, a state on NVMe, BF16_Optimizer.

Every release from 0.14.5 to 0.19.8; no upstream report was found.
https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/runtime/zero/stage_1_and_2.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from vlmpatch.api import Argument, Code, Patch, Unrecognised

OPTIMIZERS = ("DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3")
STEP = "_optimizer_step"
GROUP = Argument(0, "group_no")
SUB_GROUP = Argument(0, "sub_group_id")


class Part(NamedTuple):
    """Where a parameter lies in the partition of this rank."""

    start: int
    size: int


def look(code: Code) -> str | None:
    """The optimizer must take its step partition by partition."""
    if not any(code.function(f"{name}.{STEP}") for name in OPTIMIZERS):
        raise Unrecognised(f"{code.path} has no {STEP}")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Put back what is frozen."""
    if hasattr(module, "DeepSpeedZeroOptimizer_Stage3"):
        patch.wrap(module.DeepSpeedZeroOptimizer_Stage3, STEP, step_of_sub_group)
    else:
        patch.wrap(module.DeepSpeedZeroOptimizer, STEP, step_of_group)


def step_of_group(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around ZeRO-1's and ZeRO-2's ``_optimizer_step``."""
    group = GROUP.of(args, kwargs)
    frozen = [param for param in self.bit16_groups[group] if not param.requires_grad]
    if not frozen or _left_alone(self):
        return original(self, *args, **kwargs)
    flat = self.single_partition_of_fp32_groups[group]
    return _around(original, self, flat, list(_parts(frozen)), args, kwargs)


def step_of_sub_group(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around ZeRO-3's."""
    group = SUB_GROUP.of(args, kwargs)
    frozen = [param for param in self.fp16_groups[group] if not param.requires_grad]
    if not frozen or _left_alone(self):
        return original(self, *args, **kwargs)
    places = (self.grad_position[self.get_param_id(param)] for param in frozen)
    parts = [Part(start, size) for _, start, size in places]
    return _around(original, self, self.fp32_partitioned_groups_flat[group], parts, args, kwargs)


def _left_alone(optimizer: Any) -> bool:
    return bool(getattr(optimizer, "zenflow", False) or getattr(optimizer, "swap_optimizer", False))


def _parts(params: list[Any]) -> Iterator[Part]:
    for param in params:
        if (mapping := getattr(param, "_hp_mapping", None)) is not None:  # None: on another rank
            yield Part(mapping.hp_fragment_address.start, mapping.hp_fragment_address.numel)


def _around(
    original: Callable[..., Any], optimizer: Any, flat: Any, parts: list[Part], args: Any, kwargs: Any
) -> Any:
    """Take the step of ``flat``, and put back those of ``parts`` whose gradient is zero."""
    import torch

    still = _without_gradient(flat, parts)
    # On the CPU: there may be no room for them on a GPU.
    before = {
        name: [of(tensor, part).to("cpu", copy=True) for part in still]
        for name, tensor in _kept(optimizer, flat).items()
    }
    result = original(optimizer, *args, **kwargs)
    for name, tensor in _kept(optimizer, flat).items():
        for number, part in enumerate(still):
            # A state that began with this step begins with zeros.
            of(tensor, part).copy_(before[name][number] if name in before else torch.zeros(()))
    return result


def _without_gradient(flat: Any, parts: list[Part]) -> list[Part]:
    import torch

    if flat.grad is None or not parts:
        return parts
    found = torch.stack([of(flat.grad, part).count_nonzero() for part in parts]).tolist()
    return [part for part, count in zip(parts, found, strict=True) if not count]


def _kept(optimizer: Any, flat: Any) -> dict[Any, Any]:
    """The weights, and what the optimizer keeps of each of them, by its names."""
    found = {"": flat.data}
    for name in ("optimizer", "backup_optimizer"):
        state = getattr(optimizer, name).state.get(flat, {}) if hasattr(optimizer, name) else {}
        found |= {key: value for key, value in state.items() if getattr(value, "shape", None) == flat.shape}
    return found


def of(tensor: Any, part: Part) -> Any:
    """What of a partition belongs to ``part``."""
    return tensor.view(-1).narrow(0, part.start, part.size)
