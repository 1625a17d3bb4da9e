"""Nothing; under sequence parallelism gradients are too large by the size of its group (ZeRO-0 to ZeRO-2).

What the user sees: nothing. With two ranks a sequence, ``grad_norm`` under ZeRO-2 is twice that of ZeRO-3 and
of one process. Clipping, SGD and Adam's ``eps`` see it.

Why: the loss of ALST, accelerate and HF Trainer is the mean over the whole sequence on every rank, by a
differentiable ``all_gather`` of the ranks' means. The backward of that gather sums over the group, so every
rank's gradient is already ``sp`` times its share, and the sum over all ranks is right divided by their
number. ZeRO-3 divides by that. Stages 0 to 2, and ZeRO-3 without ``reduce_scatter`` in buckets that are not
overfull, divide by ``world / sp``, which is right for a loss that is each rank's share alone.

The change: ``engine.backward(loss)`` looks where the loss comes from. Where all of it passes one such gather
over the sequence parallel group, and the gradients of what was gathered sum up to that of the loss, the loss
is that mean as it stands, and the gradient is divided by ``sp``; the loss itself stays as it is. Under ZeRO-3
without ``reduce_scatter`` the engine divides by the number of ranks for the length of the backward.

A script that compensates for the factor shows it there, wherever it divides between the gather and the
backward, and is left alone; so is one that multiplies or divides right before the gather, that has hooks on
its parameters or on the loss, or tells the optimizer of a group of one. Only a mean is known to be one:
gathered sums that are divided by a number of tokens could have the factor in that number, and are left
alone. So are a loss that is each rank's share, a plain ``loss.backward()``, and a loss divided by a number
of micro-batches that is not known: the engine's own is, and that of HF's ``training_step``.

Since DeepSpeed 0.17.1, which has ALST; measured on 0.18.2 and 0.19.8. DeepSpeed's own test holds ZeRO-3's
gradient to one process's, and ZeRO-2's to a tolerance that hides the factor
(``tests/unit/ulysses_alst/test_ulysses_sp_hf.py``).

Upstream: https://github.com/deepspeedai/DeepSpeed/issues/5248
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

ENGINE, STEP = "DeepSpeedEngine", "training_step"
LOSS, SCALE = Argument(0, "loss"), Argument(2, "scale_wrt_gas")
SIZE = "sequence_parallel_size"
PRODUCTS = ("DivBackward0", "MulBackward0")
CLOSE = 0.05  # of a sum of weights in half precision; the smallest factor is two
LONGEST = 64  # nodes between the loss and the gather, and as many again for each rank gathered from

# By how many micro-batches the training step of HF's Trainer that runs divides its loss.
_window: ContextVar[int | None] = ContextVar("window", default=None)


def look(code: Code) -> str | None:
    """The engine must divide by less than the number of ranks, the Trainer by its accumulation steps."""
    if code.module.endswith("trainer"):
        step = code.function(f"Trainer.{STEP}")
        if step is None or "current_gradient_accumulation_steps" not in step:
            return "the Trainer does not divide by the steps of its window"
        return None
    backward = code.function(f"{ENGINE}.backward")
    if backward is None or backward.parameters[:4] != ("self", "loss", "retain_graph", "scale_wrt_gas"):
        raise Unrecognised(f"{ENGINE}.backward in {code.path} is not as any known release has it")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Divide by all ranks where the loss is the mean of a whole sequence."""
    if module.__name__.endswith("trainer"):
        patch.wrap(module.Trainer, STEP, training_step)
        return

    def backward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        size = getattr(divider(self), SIZE, 1)
        steps = told_steps(self, SCALE.of(args, kwargs, True)) if size > 1 else None
        if steps is None or made_up_for(self):
            return original(self, *args, **kwargs)
        with divided(patch, self, LOSS.of(args, kwargs), size, steps):
            return original(self, *args, **kwargs)

    patch.wrap(module.DeepSpeedEngine, "backward", backward)


def training_step(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around ``Trainer.training_step``."""
    scaled = getattr(self, "loss_is_scaled_for_ga", None), self.compute_loss_func
    own = any(said is not None for said in scaled) or self.model_accepts_loss_kwargs
    token = _window.set(None if own else self.current_gradient_accumulation_steps)
    try:
        return original(self, *args, **kwargs)
    finally:
        _window.reset(token)


def divider(engine: Any) -> Any:
    """What divides the gradients: the optimizer under ZeRO, else the engine."""
    return engine.optimizer if hasattr(engine.optimizer, SIZE) else engine


def told_steps(engine: Any, scales: bool) -> int | None:
    """By how many micro-batches the loss has been divided before the engine gets it; ``None``: not known."""
    said = getattr(engine, "scale_wrt_gas", None)
    if (scales if said is None else said) or engine.gradient_accumulation_steps() == 1:
        return 1
    return _window.get()


def made_up_for(engine: Any) -> bool:
    """Whether gradients are changed, or divided, in a way of the script's own."""
    return (
        not engine.enable_backward_allreduce
        or not getattr(divider(engine), "gradient_average", True)
        or getattr(engine, "_is_compiled_autograd_enabled", False)
        or by_all_ranks(engine)
        or any(parameter._backward_hooks for parameter in engine.module.parameters())
    )


def by_all_ranks(engine: Any) -> bool:
    """Whether it is ZeRO-3 on its default path, which is right."""
    optimizer = engine.optimizer
    return engine.zero_optimization_partition_weights() and (
        optimizer.reduce_scatter or not optimizer.contiguous_gradients
    )


@contextlib.contextmanager
def divided(patch: Patch, engine: Any, loss: Any, size: int, steps: int) -> Iterator[None]:
    """For one backward from ``loss``, which was divided by ``steps``."""
    gather = gather_of_means(loss, size)
    if gather is None:
        yield
        return
    with contextlib.ExitStack() as block:
        whole: list[float] = []  # the gradient of the loss itself: the scale of half precision

        def begun(gradient: Any) -> None:
            whole.append(float(gradient))

        def found(gradients: tuple[Any, ...]) -> tuple[Any, ...] | None:
            given = [gradient for gradient in gradients if gradient is not None]
            if not whole or any(gradient.numel() != 1 for gradient in given):
                return None
            if not math.isclose(sum(map(float, given)) * steps, whole[-1], rel_tol=CLOSE):
                return None
            if engine.zero_optimization_partition_weights():
                block.enter_context(patch.swapped(engine.optimizer, SIZE, 1))
                return None
            return tuple(None if gradient is None else gradient / size for gradient in gradients)

        block.callback(loss.register_hook(begun).remove)
        block.callback(gather.register_prehook(found).remove)
        yield


def gather_of_means(loss: Any, size: int) -> Any:
    """The one gather over the sequence parallel group that all of ``loss`` passes, where it is a mean's."""
    from torch.distributed.nn import functional

    gather = getattr(getattr(functional, "_AllGather", None), "_backward_cls", None)  # torch deprecates it
    if gather is None or getattr(loss, "grad_fn", None) is None or loss.numel() != 1 or loss._backward_hooks:
        return None
    seen, waiting, found = {loss.grad_fn}, [loss.grad_fn], []
    while waiting:
        node = waiting.pop()
        before = {each for each, _ in node.next_functions if each is not None}
        if isinstance(node, gather):
            found.append(node)
        elif not before or len(seen) > LONGEST * (1 + size):
            return None  # a parameter, or a graph that is the model's
        else:
            waiting += before - seen
            seen |= before
    if len(found) != 1 or not of_the_sequence(found[0].group) or scaled(found[0]):
        return None
    return found[0]


def scaled(gather: Any) -> bool:
    """Whether what is gathered has just been multiplied or divided by a constant."""
    for node, _ in gather.next_functions:
        operands = [each for each, _ in getattr(node, "next_functions", ()) if each is not None]
        if type(node).__name__ in PRODUCTS and len(operands) == 1:
            return True
    return False


def of_the_sequence(group: Any) -> bool:
    """Whether the ranks of ``group`` are those that share a sequence; ``None`` is all of them."""
    from deepspeed.utils import groups
    from torch.distributed import distributed_c10d as c10d

    together = groups._get_sequence_parallel_group()
    if group is together:
        return True
    ranks = [c10d.get_process_group_ranks(each or c10d.GroupMember.WORLD) for each in (group, together)]
    return sorted(ranks[0]) == sorted(ranks[1])
