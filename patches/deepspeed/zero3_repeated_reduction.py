"""A parameter used in two reentrant checkpointed segments: ZeRO-3 asserts, or keeps one segment's gradient.

What the user sees: a bare ``AssertionError`` from ``stage3.py``, at ``len(set(p.ds_id for p in ...))``;
or nothing at all, and gradients of the vision tower that are wrong by up to 91 %. It takes
``use_reentrant=True`` and a module called more than once before the backward: a vision tower called
once for each slice group, two forwards before one backward.

Why: the reentrant variant runs a backward of its own for each segment, so a parameter used in two
segments is reduced twice. When its first gradient still waits in the bucket, the second puts it there
again, which the assertion forbids. When the bucket has gone out meanwhile, the second gradient reaches
its partition alone, and in the first micro step of an optimizer step DeepSpeed copies a gradient into
its partition where it adds it in all later ones: the first segment's is lost.

What is done: the second and later reductions of a parameter within one backward are added. A gradient
that still waits in the bucket needs nothing: autograd has already added to it, in the bucket's memory.
Where the bucket is filled on a stream of its own (``overlap_comm`` on a GPU) that addition may come
before the gradient it adds to, so there the run ends with an error that says what to do.

The non-reentrant variant, which vlmpatch makes the default, sums before it reduces and never comes here.

Every release from 0.12.6 to 0.19.8. Upstream: https://github.com/deepspeedai/DeepSpeed/issues/4505
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from vlmpatch.api import Argument, Code, Patch

from .._shared.known_shapes import recognise

# Every shape these had from 0.12.6 to 0.19.8: digest and the release that brought it.
SHAPES = {
    "DeepSpeedZeroOptimizer_Stage3.partition_grads": {
        "ac6f751b9fc6": "0.14.0",
        "a3d403ccfc5e": "0.15.4",
        "e90c3448c726": "0.16.3",
        "1a6d89a41b47": "0.16.6",
        "8724b8dcbd5a": "0.17.5",
        "21bccd6125a3": "0.18.3",
        "88daeee96580": "0.19.3",
        "29b164b16cfe": "0.19.5",
    },
    "DeepSpeedZeroOptimizer_Stage3.reduce_independent_p_g_buckets_and_remove_grads": {
        "06164b37e6c9": "0.14.0",
        "9960669533d2": "0.17.0",
        "63f4ab8d64a2": "0.17.2",
        "7df31673a6c9": "0.19.3",
        "c5052ed7d3a1": "0.19.8",
    },
}
# What runs once before each backward: at its start, since 0.18.5 at the start of its forward.
BEGINNINGS = ("clear_backward_seen_flag", "backward_prologue", "backward")
PARAMS, GRADIENTS = Argument(0, "params_to_release"), Argument(1, "grad_partitions")
RACE = (
    "A parameter of shape {shape} is used in two checkpointed segments, and use_reentrant=True reduces it in "
    "each. With overlap_comm on this device the two gradients cannot be summed safely, so this run stops "
    "before its gradients go wrong. Use the non-reentrant variant (gradient_checkpointing_kwargs="
    '{{"use_reentrant": False}}, vlmpatch\'s default), or set "overlap_comm": false'
)


def look(code: Code) -> str | None:
    """The two functions must be as one of the known releases has them."""
    recognise(code, SHAPES)
    return None


class Fired(NamedTuple):
    """What has happened in one engine's current backward, as ``ds_id``s."""

    hooks: set[int]  # gradients that arrived
    reduced: set[int]  # gradients that reached their partition


def apply(patch: Patch, module: ModuleType) -> None:
    """Let reductions after the first add up."""
    optimizer = module.DeepSpeedZeroOptimizer_Stage3
    fired: WeakKeyDictionary[Any, Fired] = WeakKeyDictionary()

    def begin(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        fired[self] = Fired(set(), set())
        return original(self, *args, **kwargs)

    def step(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        # A script that calls the model itself and not the engine never begins a backward in DeepSpeed's
        # sense; what was reduced before this step must not count for the next.
        fired.pop(self, None)
        return original(self, *args, **kwargs)

    def reduce(original: Callable[..., Any], self: Any, /, param: Any) -> None:
        hooks = fired.setdefault(self, Fired(set(), set())).hooks
        if param.ds_id in hooks and _waits_in_bucket(self, param):
            if self.contiguous_gradients and _bucket_has_own_stream(self, module):
                raise RuntimeError(RACE.format(shape=tuple(param.ds_shape)))
            return
        hooks.add(param.ds_id)
        original(self, param)

    def partition(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        params, grads = PARAMS.of(args, kwargs), GRADIENTS.of(args, kwargs)
        reduced = fired.setdefault(self, Fired(set(), set())).reduced
        again = [param.ds_id in reduced for param in params]
        reduced.update(param.ds_id for param in params)
        if self.micro_step_id != 0 or not any(again):
            return original(self, *args, **kwargs)
        pairs = list(zip(params, grads, again, strict=True))
        first = [(param, grad) for param, grad, repeated in pairs if not repeated]
        later = [(param, grad) for param, grad, repeated in pairs if repeated]
        buffers = list(original(self, *map(list, zip(*first, strict=True))) or ()) if first else []
        with patch.swapped(self, "micro_step_id", 1):  # any but the first: DeepSpeed then adds
            return buffers + list(original(self, *map(list, zip(*later, strict=True))) or ())

    patch.wrap(optimizer, next(name for name in BEGINNINGS if name in vars(optimizer)), begin)
    patch.wrap(optimizer, "reduce_independent_p_g_buckets_and_remove_grads", reduce)
    patch.wrap(optimizer, "partition_grads", partition)
    patch.wrap(optimizer, "step", step)


def _waits_in_bucket(optimizer: Any, param: Any) -> bool:
    buckets = getattr(optimizer, "ipg_buckets", None)  # one list until 0.17.1, then one a dtype
    waiting = [optimizer.params_in_ipg_bucket] if buckets is None else [b.params for b in buckets.values()]
    return any(param is other for params in waiting for other in params)


def _bucket_has_own_stream(optimizer: Any, stage3: ModuleType) -> bool:
    stream = optimizer.reduce_and_partition_stream
    return stream is not None and stream != stage3.get_accelerator().default_stream()
