"""ZeRO-3 updated a parameter that got no gradient with the gradient of an earlier step.

What the user sees: nothing. A trainable parameter that gets no gradient in a step (every rank's batch is
text only, an expert nobody chose, a head used now and then), or none in the first micro-batch of a window:
after two or three steps parameters are 70 to 110 % off plain data parallel. With
``offload_optimizer`` also a parameter that gets none in the last micro-batch of a window. A batch that was
dropped with ``zero_grad``, because its loss was NaN, reaches what the next one does not use in the same way.

Why: the first micro-batch of a window copies a gradient into its partition, all later ones add to it,
and partitions are never cleared. What got nothing keeps the last step's, which is then applied again.
With the optimizer offloaded only what arrives in the last micro-batch reaches it.

What is done: after the first backward of a window a zero goes into the partition of what got nothing,
by DeepSpeed's own function; with the optimizer offloaded the same after the last. No rank waits for
another for it. What DeepSpeed fills in by itself, for the experts of a leaf that no token reached, is
filled in before it does.

The zero has a sign by which ``zero-step-without-gradient`` knows it and passes over the parameter. One that
was frozen since its last gradient gets a zero too. Where the optimizer is offloaded that gradient would be
applied in every step; elsewhere, if it has overflowed, every step would be passed over, for all partitions
are looked through.

Left alone: ZenFlow; a gradient that still lies at its parameter, as under a leaf that is never called itself,
which reduces nothing (a ``ModuleList``).

Every release from 0.14.4 to 0.19.8; no upstream report was found.
https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/runtime/zero/stage3.py
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from vlmpatch.api import Argument, Code, Patch, Unrecognised, assign

from .._shared.missing_gradients import count_as_none, none_made, taken, unreached

OPTIMIZER = "DeepSpeedZeroOptimizer_Stage3"
EPILOGUE = "independent_gradient_partition_epilogue"
PARTITION = "partition_grads"
HOOKS = "create_reduce_and_remove_grad_hooks"
LEAF = "ds_z3_leaf_module"  # of a parameter
PARAMS = Argument(0, "params_to_release")
COPIES = ("self.micro_step_id == 0", "grad_buffer.copy_(grad_partition, non_blocking=True)")


def look(code: Code) -> str | None:
    """The first micro-batch must copy, and nobody must clear."""
    partition = code.function(f"{OPTIMIZER}.{PARTITION}")
    epilogue = code.function(f"{OPTIMIZER}.{EPILOGUE}")
    if partition is None or epilogue is None or not all(piece in partition for piece in COPIES):
        raise Unrecognised(f"{OPTIMIZER}.{PARTITION} in {code.path} is not as any known release has it")
    if ".zero_()" in epilogue or "grad_partitions_flat_buffer" in epilogue:
        return "partitions are cleared"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Put a zero where nothing came."""
    optimizer = module.DeepSpeedZeroOptimizer_Stage3
    # Of each optimizer: what reached its partition since the last step, by micro-batch, as ``ds_id``s.
    reached: WeakKeyDictionary[Any, defaultdict[int, set[int]]] = WeakKeyDictionary()
    frozen: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()  # of each: what got a zero since it was

    def of(self: Any, micro: int) -> set[int]:
        return reached.setdefault(self, defaultdict(set))[micro]

    def partition(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        given = {param.ds_id for param in PARAMS.of(args, kwargs)}
        of(self, self.micro_step_id).update(given)
        frozen.setdefault(self, set()).difference_update(given)
        return original(self, *args, **kwargs)

    def epilogue(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        micro = self.micro_step_id  # some releases count it up in here
        result = original(self, *args, **kwargs)
        blank = taken()
        if not _left_alone(self) and _matters(self, micro):
            zeroed = frozen.setdefault(self, set())
            absent = list(_absent(self, of(self, micro), zeroed))
            unreached[self] = blank | {id(param) for param in absent}
            with patch.swapped(self, "micro_step_id", micro) if absent else contextlib.nullcontext():
                for param in absent:
                    _put_zero(self, param, module)
            zeroed.update(param.ds_id for param in absent if not param.requires_grad)
        return result

    def put_hooks(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        for leaf, params in _leaves(self).items():  # DeepSpeed's own comes behind it
            patch.hook(leaf.register_full_backward_hook, _filling(params))
        return original(self, *args, **kwargs)

    def begins_anew(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        reached.pop(self, None)
        return original(self, *args, **kwargs)

    patch.wrap(optimizer, PARTITION, partition)
    patch.wrap(optimizer, EPILOGUE, epilogue)
    if hasattr(optimizer, HOOKS):
        patch.wrap(optimizer, HOOKS, put_hooks)
    patch.wrap(optimizer, "step", begins_anew)
    patch.wrap(optimizer, "zero_grad", begins_anew)


def _leaves(optimizer: Any) -> dict[Any, list[Any]]:
    """Of each leaf its parameters, which are reduced when its backward is over."""
    found: dict[Any, list[Any]] = {}
    for param in (param for group in optimizer.fp16_groups for param in group):
        if param.requires_grad and (leaf := getattr(param, LEAF, None)) is not None:
            found.setdefault(leaf, []).append(param)
    return found


def _filling(params: list[Any]) -> Callable[..., None]:
    """A backward hook of their leaf."""

    def fill(leaf: Any, inputs: Any, outputs: Any) -> None:
        absent = [param for param in params if param.grad is None]
        for param in absent:
            assign(param, "grad", none_made(param))
        count_as_none(absent)

    return fill


def _left_alone(optimizer: Any) -> bool:
    return bool(getattr(optimizer, "zenflow", False))


def _matters(optimizer: Any, micro: int) -> bool:
    """Whether nothing has to become a zero: at a window's beginning; offloaded, at its end too."""
    boundary = optimizer.is_gradient_accumulation_boundary  # a method since 0.19.5
    boundary = boundary() if callable(boundary) else boundary
    return micro == 0 or bool(optimizer.offload_optimizer and boundary)


def _absent(optimizer: Any, present: set[int], zeroed: set[int]) -> Iterator[Any]:
    for group in optimizer.fp16_groups:
        for param in group:
            # One that still has its gradient has one: a leaf that is never called itself reduces nothing.
            if param.ds_id in present or param.grad is not None:
                continue
            if param.requires_grad or _still_counts(optimizer, param, zeroed):
                yield param


def _still_counts(optimizer: Any, param: Any, zeroed: set[int]) -> bool:
    """Whether what was frozen since may have a gradient left in its partition.

    Args:
        optimizer: of ZeRO-3.
        param: that is frozen.
        zeroed: those that got a zero since they were; offloaded it is a sum that may have come after it.
    """
    if not optimizer.offload_optimizer:
        return param.ds_id not in zeroed
    if optimizer.swap_optimizer:
        return False
    group, start, count = optimizer.grad_position[optimizer.get_param_id(param)]
    gradient = optimizer.fp32_partitioned_groups_flat[group].grad
    return gradient is not None and bool(gradient.narrow(0, start, count).any())


def _put_zero(optimizer: Any, param: Any, module: ModuleType) -> None:
    device = module.get_accelerator().current_device_name()
    zero = none_made(module.torch.empty(param.partition_numel(), dtype=param.dtype, device=device))
    if param.grad is None:
        # some releases ask its stream before they drop it
        assign(param, "grad", module.torch.zeros_like(param))
    getattr(optimizer, PARTITION)([param], [zero])
