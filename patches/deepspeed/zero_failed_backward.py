"""A backward that failed, and was passed over, ended the run in the next one under ZeRO.

What the user sees: an error in a backward (out of memory, an exception of the model's own) is caught and the
batch skipped or tried again, as plain torch allows. The next backward ends in ``AssertionError: The parameter
7 has already been reduced`` under ZeRO-2, and ZeRO-1 with ``overlap_comm``, or in a bare ``AssertionError``
under ZeRO-3. Without ``overlap_comm`` ZeRO-1 adds the half of a gradient to the next one, where ``zero_grad``
was not called.

Why: what was in the buckets, which parameters had been reduced, the number of the micro-batch and, in ZeRO-3,
the gathered parameters stay as the failed backward left them; only the end of a backward clears them.

What is done: at the next backward, or forward that records gradients, all that is forgotten, and what the
window's micro-batches before it had summed up stays. Where that cannot be told apart (ZeRO-1 sums up in
``.grad``; with ``offload_optimizer``, and in ZeRO-3, a part of the failed backward may have been added
already) the window starts again, as ``zero_grad`` lets it do in plain torch.

A backward that began no collective concerns this rank alone. One that did concerns all: a rank that did not
fail would wait forever in what this one left. So each rank says over the job's store that it failed, and how
many collectives it had begun; the next forward waits up to a minute for the others, and ends with an error
where one did not fail, or not at the same place. It did so before, with less to say.

Left alone: ZenFlow, pipelines, BF16_Optimizer, ``loss.backward()`` without the engine.

Every release from 0.14.4 to 0.19.8; no upstream report was found.
https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/runtime/zero/stage_1_and_2.py
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from vlmpatch.api import Code, Patch, Unrecognised, assign

from .._shared.failed_backward import Backward, collectives
from .._shared.reduction_order import orders

ENGINE, FLAT, PARTITIONED = "DeepSpeedEngine", "DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3"
PARTITION = "partition_grads"
NEW_WINDOW = {FLAT: -1, PARTITIONED: 0}  # the number of the micro-batch before the first
ID = "zero-failed-backward"
BUCKET = {  # what says what is in the one bucket of releases until 0.17.1, and that there is nothing
    "grads_in_ipg_bucket": list[Any](),
    "params_in_ipg_bucket": list[Any](),
    "elements_in_ipg_bucket": 0,
    "ipg_bucket_has_moe_params": False,
    "extra_large_param_to_reduce": None,
}


class Begun(NamedTuple):
    """Where an engine stood as a backward began."""

    number: int  # of the backwards of its group
    collectives: int  # that its group had begun
    micro_step: int
    sums: int  # what tells that nothing was added to ``.grad``


class Failure(NamedTuple):
    """A backward that raised."""

    begun: Begun
    collectives: int
    reduced: bool  # some gradients had left their buckets


_backwards: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of each process group
_partitioned: WeakSet[Any] = WeakSet()  # ZeRO-3's optimizers that reduced something in this backward
_failed: WeakKeyDictionary[Any, Failure] = WeakKeyDictionary()


def look(code: Code) -> str | None:
    """The engine must have its forward and backward, ZeRO-3 the function that partitions gradients."""
    if code.module.endswith("engine"):
        names = [f"{ENGINE}.forward", f"{ENGINE}.backward"]
    else:
        names = [f"{PARTITIONED}.{PARTITION}"]
    for name in names:
        if code.function(name) is None:
            raise Unrecognised(f"{code.path} has no {name}")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Forget a backward that failed."""
    if module.__name__.endswith("engine"):
        patch.wrap(module.DeepSpeedEngine, "forward", forward)
        patch.wrap(module.DeepSpeedEngine, "backward", backward)
    else:
        patch.wrap(module.DeepSpeedZeroOptimizer_Stage3, PARTITION, partition)


def forward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around ``DeepSpeedEngine.forward``."""
    if _failed and _needs_it(self.optimizer):
        forget(self)
    return original(self, *args, **kwargs)


def _needs_it(optimizer: Any) -> bool:
    """An evaluation does not, but for what ZeRO-3 gathered: the gradients are the script's until then."""
    recorded: bool = sys.modules["torch"].is_grad_enabled()
    return recorded or type(optimizer).__name__ == PARTITIONED


def backward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around ``DeepSpeedEngine.backward``."""
    if type(self.optimizer).__name__ not in NEW_WINDOW or getattr(self.optimizer, "zenflow", False):
        return original(self, *args, **kwargs)
    forget(self)
    begun = _begin(self)
    try:
        return original(self, *args, **kwargs)
    except BaseException:
        if begun is not None:
            _note(self.optimizer, begun)
        raise


def partition(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around ZeRO-3's ``partition_grads``, through which what was reduced goes into its sums."""
    _partitioned.add(self)
    return original(self, *args, **kwargs)


def _begin(engine: Any) -> Begun | None:
    """None where the number of collectives is not known: then nothing can be said of a failure."""
    optimizer = engine.optimizer
    group = optimizer.dp_process_group
    begun = collectives(group)
    if begun is None:
        return None
    _partitioned.discard(optimizer)
    number = _backwards[group] = _backwards.get(group, 0) + 1
    within = engine.micro_steps % engine.gradient_accumulation_steps() != 0
    sums = _sums(optimizer) if within and not getattr(optimizer, "partition_gradients", True) else 0
    return Begun(number, begun, optimizer.micro_step_id, sums)


def _note(optimizer: Any, begun: Begun) -> None:
    """Remember the failure; the other ranks are told where they could wait for this one."""
    group = optimizer.dp_process_group
    now = collectives(group)
    if now is None:
        return
    flat = type(optimizer).__name__ == FLAT
    reduced = any(optimizer.params_already_reduced) if flat else optimizer in _partitioned
    failure = _failed[optimizer] = Failure(begun, now - begun.collectives, reduced)
    Backward(ID, group, begun.number).failed(failure.collectives)


def forget(engine: Any) -> None:
    """Put away what a failed backward of ``engine`` has left.

    Raises:
        RuntimeError: another rank did not fail, or elsewhere, and waits for this one.
    """
    optimizer = engine.optimizer
    failure = _failed.pop(optimizer, None)
    if failure is None:
        return
    if failure.collectives:
        Backward(ID, optimizer.dp_process_group, failure.begun.number).ask(failure.collectives)
    if type(optimizer).__name__ == FLAT:
        _forget_flat(optimizer, failure)
    else:
        _forget_partitioned(optimizer, failure)
    if hasattr(optimizer, "_backward_active_depth"):
        assign(optimizer, "_backward_active_depth", 0)


def _forget_flat(optimizer: Any, failure: Failure) -> None:
    """Of ZeRO-1 and ZeRO-2."""
    assign(optimizer, "params_already_reduced", [False] * len(optimizer.params_already_reduced))
    for bucket in getattr(optimizer, "ipg_buckets", {}).values():  # one bucket until 0.17.1, then one a dtype
        bucket.clear()
    if hasattr(optimizer, "ipg_buckets"):
        optimizer.extra_large_param_to_reduce.clear()
    else:
        for name, nothing in BUCKET.items():
            assign(optimizer, name, copy.copy(nothing))
    optimizer._clear_previous_reduced_grads()
    optimizer._release_ipg_buffers()
    spoiled = optimizer.cpu_offload and failure.reduced
    assign(optimizer, "micro_step_id", NEW_WINDOW[FLAT] if spoiled else failure.begun.micro_step)
    if not failure.begun.sums or failure.begun.sums != _sums(optimizer):
        _drop(optimizer.bit16_groups)
    if (order := orders.get(optimizer)) is not None:
        order.begin()


def _forget_partitioned(optimizer: Any, failure: Failure) -> None:
    """Of ZeRO-3."""
    buckets = getattr(optimizer, "ipg_buckets", None)  # one until 0.17.1, then one a dtype
    for bucket in () if buckets is None else buckets.values():
        bucket.params.clear()
        assign(bucket, "elements", 0)
        if hasattr(bucket, "process_group"):
            assign(bucket, "process_group", None)
    if buckets is None:
        optimizer.params_in_ipg_bucket.clear()
    if failure.reduced:
        assign(optimizer, "micro_step_id", NEW_WINDOW[PARTITIONED])
    _drop(optimizer.fp16_groups)
    optimizer.empty_partition_cache()


def _drop(groups: Any) -> None:
    for param in _params(groups):
        assign(param, "grad", None)
        if hasattr(param, "grad_accum"):
            assign(param, "grad_accum", None)


def _sums(optimizer: Any) -> int:
    """A number that changes when something is added to a gradient."""
    held = (
        getattr(p, name, None) for p in _params(optimizer.bit16_groups) for name in ("grad", "grad_accum")
    )
    return sum(1 + tensor._version for tensor in held if tensor is not None)


def _params(groups: Any) -> Iterator[Any]:
    for group in groups:
        yield from group
