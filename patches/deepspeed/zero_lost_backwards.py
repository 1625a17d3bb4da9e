"""ZeRO-1 and ZeRO-2 counted only the last of several backwards before one step.

What the user sees: nothing, where each of two losses has an ``engine.backward`` of its own before
``engine.step``: gradients are off by 77 to 115 %, only the last loss counts. So does only the last of several
backwards at the end of a window. Before 0.18.3 ``TypeError: 'NoneType' object is not iterable``.

Why: the epilogue of a backward that ends a window hands the sums to ``averaged_gradients`` and forgets them
(``all_grad_tensors``); that of the next one starts again and puts its own in their place, or, in 0.17.6 to
0.18.2, would add to what was forgotten. Before 0.17.6 it adds them up. With ``offload_optimizer`` every
release lets the last backward write over what the ones before it left on the CPU; 0.19.8 adds the step before
as well.

What is done: what an ``engine.backward`` finds in ``averaged_gradients``, or in the gradients of the
offloaded partitions, is put aside and added to what it leaves there, unless ``zero_grad`` was called in
between (the engine's, its optimizer's, or that of the model itself), which is how a script drops a backward,
or its loss or its gradients were no numbers on some rank: a script that skips such a batch, without a step or
a ``zero_grad``, is right without this. A finite one that is skipped so counts, as in plain torch, DDP and
ZeRO-3. Where a backward follows another without a step the ranks agree on that, by one all-reduce of one
number. Under a loss scaler, where the step before was made of several backwards, gradients that overflowed
are added: the step is to see them. Offloaded, the window's sums on the CPU begin anew, and norms are those of
the sum. Where a step follows each backward there is nothing to add. A release that adds backwards up by
itself, or keeps a window's sums on the CPU until a step (0.19), does so after a ``zero_grad`` too, and what
is offloaded keeps the gradient of a parameter that the next backward does not use: there the sums of a window
that had ended are dropped before the next backward, whose step would otherwise take the batch that the script
threw away. Until 0.18 no batch that ended a window is in the sums on the CPU, and what the window has there
stays.

A ``loss.backward()`` without the engine, which 0.18.3 made equal to the engine's own, counts in the same way,
before or after an ``engine.backward`` or another of its kind, where the release says when a backward is over.

Left alone: ZenFlow; offloaded, a ``loss.backward()`` without the engine, and partitions that DeepSpeed 0.19
sums up in float32 by itself; a ``loss.backward()`` with another backward between its forward and itself,
which DeepSpeed brings to no end; a ``zero_grad`` before the end of a window, which scripts call for every
micro-batch and no release heeds.

Seen in DeepSpeed 0.18.2 (the error) and 0.19.8; offloaded in 0.14.5, 0.18.2 and 0.19.8; sums that outlive a
``zero_grad`` in 0.14.5 and 0.15.4, offloaded in 0.19.8. Its own remedy is
``set_gradient_accumulation_boundary``.
https://github.com/allenai/open-instruct/pull/1498; offloaded: https://github.com/deepspeedai/DeepSpeed/pull/7981
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from vlmpatch.api import Argument, Code, Patch, Unrecognised, assign, of_module

from .._shared.distributed import largest
from .._shared.emptied import at_zero_grad

ENGINE, OPTIMIZER = "DeepSpeedEngine", "DeepSpeedZeroOptimizer"
EPILOGUE = "independent_gradient_partition_epilogue"
PROLOGUE_OF_ENGINE, EPILOGUE_OF_ENGINE = "_backward_prologue", "_backward_epilogue"  # since 0.18.3
DEPTH = "_backward_active_depth"
LOSS = Argument(0, "loss")
FORGETS = "self.all_grad_tensors[i] = None"
ACCUMULATE = "async_accumulate_grad_in_cpu_via_gpu"
# What ends a window is no part of the sums on the CPU: the first of it alone is, or all but the last.
SPARES_LAST = re.compile(r"(else|if not self\.is_gradient_\w+_boundary):\s+copy_gradients_to_cpu\(\)")
INSIDE = "inside_no_sync_ctxt"  # of an engine in its no_sync, where a backward reduces nothing

_adding: WeakSet[type] = WeakSet()  # optimizers whose own epilogue adds one backward to the next
_sparing: WeakSet[type] = WeakSet()  # those that put no backward that ends a window into the sums on the CPU
_dropped: WeakSet[Any] = WeakSet()  # optimizers whose gradients were dropped since the last backward
_running: WeakSet[Any] = WeakSet()  # in the middle of one
_ended: WeakSet[Any] = WeakSet()  # offloaded, and at the end of a window
# What backwards before one without the engine left for the step, by group, until they are known to count.
_before: WeakKeyDictionary[Any, dict[int, list[Any]]] = WeakKeyDictionary()
_counted: WeakSet[Any] = WeakSet()  # of ``_before``: they do


class Last(NamedTuple):
    """The latest backward of an optimizer."""

    steps: int  # that its engine had taken
    loss: Any
    number: int  # of the backwards since that step that ended a window
    several: bool  # the step before had more than one, so the script adds up


_last: WeakKeyDictionary[Any, Last] = WeakKeyDictionary()


def look(code: Code) -> str | None:
    """The engine must have its backward, and the optimizer its epilogue."""
    if code.module.endswith("engine"):
        function = code.function(f"{ENGINE}.backward")
        if function is None or function.parameters[:2] != ("self", "loss"):
            raise Unrecognised(f"{ENGINE}.backward in {code.path} is not as any known release has it")
        return None
    if code.function(f"{OPTIMIZER}.{EPILOGUE}") is None:
        raise Unrecognised(f"{code.path} has no {OPTIMIZER}.{EPILOGUE}")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Let each backward of a step count."""
    if module.__name__.endswith("engine"):
        patch.wrap(module.DeepSpeedEngine, "backward", backward)
        patch.wrap(module.DeepSpeedEngine, "zero_grad", zero_grad_of_engine)
        at_zero_grad(patch, lambda: [optimizer for optimizer in _last if optimizer not in _running], _drop)
        if hasattr(module.DeepSpeedEngine, EPILOGUE_OF_ENGINE):
            patch.wrap(module.DeepSpeedEngine, PROLOGUE_OF_ENGINE, prologue)
            patch.wrap(module.DeepSpeedEngine, EPILOGUE_OF_ENGINE, epilogue)
        return
    patch.wrap(module.DeepSpeedZeroOptimizer, "zero_grad", zero_grad)
    patch.wrap(module.DeepSpeedZeroOptimizer, "step", step)
    handed_over = of_module(module).function(f"{OPTIMIZER}.{EPILOGUE}")
    if handed_over is not None and FORGETS not in handed_over:
        _adding.add(module.DeepSpeedZeroOptimizer)
    accumulate = of_module(module).function(f"{OPTIMIZER}.{ACCUMULATE}")
    if accumulate is not None and SPARES_LAST.search(accumulate.source):
        _sparing.add(module.DeepSpeedZeroOptimizer)


def backward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around ``DeepSpeedEngine.backward``."""
    optimizer = self.optimizer
    if not _keeps_sums(optimizer):
        return original(self, *args, **kwargs)
    if not _adds(optimizer) and _is_no_number(self, optimizer, optimizer.averaged_gradients):
        _dropped.add(optimizer)
    if optimizer in _dropped:
        _ended.discard(optimizer)
        if optimizer.cpu_offload and _had_ended(self, optimizer):
            _blank(_on_cpu(optimizer) if type(optimizer) in _sparing else _all_on_cpu(optimizer))
    earlier = {} if optimizer.cpu_offload else _earlier(self, optimizer)
    offloaded = _offloaded(optimizer) if optimizer in _ended else []
    _running.add(optimizer)
    try:
        result = original(self, *args, **kwargs)
    except BaseException:
        for gradient, before in offloaded:
            gradient.copy_(before)
        raise
    finally:
        _running.discard(optimizer)
        _dropped.discard(optimizer)
        _put_back(optimizer, earlier)
    ends = bool(self.is_gradient_accumulation_boundary()) and not getattr(self, INSIDE, False)
    _last[optimizer] = _next(_last.get(optimizer), self.global_steps, LOSS.of(args, kwargs), ends)
    if optimizer.cpu_offload and ends:
        _ended.add(optimizer)
    if offloaded:
        _add_offloaded(optimizer, offloaded)
    return result


def prologue(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around what begins a backward, once for each forward that it goes through."""
    optimizer = self.optimizer
    if _goes_past(optimizer) and not getattr(optimizer, DEPTH):
        _counted.discard(optimizer)
        _before[optimizer] = _left(optimizer)
        _dropped.discard(optimizer)
        ends = bool(self.is_gradient_accumulation_boundary())
        _last[optimizer] = _next(_last.get(optimizer), self.global_steps, None, ends)
    return original(self, *args, **kwargs)


def epilogue(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around what ends one, or each phase of one where a reentrant checkpoint recomputes."""
    optimizer = self.optimizer
    asked = _goes_past(optimizer) and bool(_before.get(optimizer))
    if asked and optimizer not in _counted:
        if _is_no_number(self, optimizer, _before[optimizer]):
            _before.pop(optimizer)
        else:
            _counted.add(optimizer)
    result = original(self, *args, **kwargs)
    if asked:
        _add_before(optimizer, _before.get(optimizer, {}))
    return result


def _goes_past(optimizer: Any) -> bool:
    """Whether what begins or ends now is no ``engine.backward``, of a release that tells when it is over."""
    if optimizer in _running or not _keeps_sums(optimizer) or not hasattr(optimizer, DEPTH):
        return False
    return not (optimizer.cpu_offload or _adds(optimizer))


def _left(optimizer: Any) -> dict[int, list[Any]]:
    """What backwards before this one left for the step; it stays there: this one may not reach its end."""
    found = {group: grads for group, grads in optimizer.averaged_gradients.items() if grads is not None}
    if found:
        _forget_own(optimizer)
    return {} if optimizer in _dropped else found


def _add_before(optimizer: Any, before: dict[int, list[Any]]) -> None:
    for group, gradients in before.items():
        now = optimizer.averaged_gradients.get(group)
        if now is not None and now is not gradients:
            # Not in place: the next phase of this backward may still add to what is there.
            sums = [total + earlier for total, earlier in zip(now, gradients, strict=True)]
            optimizer.averaged_gradients[group] = sums


def _next(last: Last | None, steps: int, loss: Any, ends: bool) -> Last:
    value = getattr(loss, "data", None)
    if last is not None and last.steps == steps:
        return Last(steps, value, last.number + ends, last.several)
    return Last(steps, value, int(ends), last is not None and last.number > 1)


def _keeps_sums(optimizer: Any) -> bool:
    return type(optimizer).__name__ == OPTIMIZER and not getattr(optimizer, "zenflow", False)


def _is_no_number(engine: Any, optimizer: Any, found: Mapping[int, Any]) -> bool:
    """Whether what the backward before this one left, without a step since, is no number on some rank.

    Args:
        engine: of the optimizer.
        optimizer: whose backward it is.
        found: the gradients that were left, by group.
    """
    last = _last.get(optimizer)
    left = [each for grads in found.values() for each in grads or ()]
    if last is None or last.steps != engine.global_steps or not (left or optimizer in _ended):
        return False
    if optimizer in _ended:
        parts = optimizer.single_partition_of_fp32_groups
        left = [part.grad for part in parts if part.grad is not None]
    # Where losses are scaled and several backwards make a step, one may overflow: the step is to see that.
    scaled = last.several and _is_scaled(optimizer)
    judged = [each for each in (last.loss, *(() if scaled else left)) if each is not None]
    here = any(not bool(each.isfinite().all()) for each in judged)
    device = optimizer.bit16_groups[0][0].device
    return bool(largest(int(here), [optimizer.dp_process_group], device))


def _is_scaled(optimizer: Any) -> bool:
    import torch

    return optimizer.dtype is torch.float16 or bool(getattr(optimizer, "torch_autocast_gradscaler", None))


def _adds(optimizer: Any) -> bool:
    """Whether its release adds one backward to the next."""
    return type(optimizer) in _adding and not optimizer.cpu_offload


def _earlier(engine: Any, optimizer: Any) -> dict[int, list[Any]]:
    """Take what backwards before this one left for the step, by group."""
    if _adds(optimizer) and not (optimizer in _dropped and _had_ended(engine, optimizer)):
        return {}
    found = {group: grads for group, grads in optimizer.averaged_gradients.items() if grads is not None}
    optimizer.averaged_gradients.update(dict.fromkeys(found))
    if found:
        _forget_own(optimizer)
    return {} if optimizer in _dropped else found


def _forget_own(optimizer: Any) -> None:
    """They are in the sums, and the next reduction would take them for this rank's own."""
    if not getattr(optimizer, "use_grad_accum_attribute", False):
        return
    for params in optimizer.bit16_groups:
        for param in params:
            assign(param, "grad_accum", None)


def _had_ended(engine: Any, optimizer: Any) -> bool:
    """Whether a backward ended a window that no step has taken."""
    last = _last.get(optimizer)
    return last is not None and last.steps == engine.global_steps and last.number > 0


def _put_back(optimizer: Any, earlier: dict[int, list[Any]]) -> None:
    for group, gradients in earlier.items():
        now = optimizer.averaged_gradients.get(group)
        for total, before in zip(now or (), gradients, strict=bool(now)):
            total.add_(before)
        optimizer.averaged_gradients[group] = now or gradients


def _offloaded(optimizer: Any) -> list[tuple[Any, Any]]:
    """Take the same from the CPU: each partition's gradient, the window's sums, what stood in them."""
    _copied()
    found = [(tensor, tensor.clone()) for tensor in (*_on_cpu(optimizer), *_sums(optimizer))]
    _blank(_all_on_cpu(optimizer))
    return found


def _on_cpu(optimizer: Any) -> list[Any]:
    """The gradient of each offloaded partition that DeepSpeed does not sum up by itself."""
    sums_itself = getattr(optimizer, "_use_compact_grad_partition_buffer", lambda group: False)
    partitions = enumerate(optimizer.single_partition_of_fp32_groups)
    return [part.grad for group, part in partitions if part.grad is not None and not sums_itself(group)]


def _sums(optimizer: Any) -> list[Any]:
    """The window's sums on the CPU, to which a ``loss.backward()`` adds; not those kept in the gradients."""
    partitions = optimizer.single_partition_of_fp32_groups
    kept = {part.grad.untyped_storage().data_ptr() for part in partitions if part.grad is not None}
    sums = optimizer.accumulated_grads_in_cpu.values()
    return [tensor for tensor in sums if tensor.untyped_storage().data_ptr() not in kept]


def _all_on_cpu(optimizer: Any) -> list[Any]:
    return [*_on_cpu(optimizer), *optimizer.accumulated_grads_in_cpu.values()]


def _blank(tensors: list[Any]) -> None:
    """Begin what is on the CPU anew, as if no parameter had a gradient."""
    _copied()
    for tensor in tensors:
        tensor.fill_(-0.0)  # it stands for none until something is added to it, and changes nothing of that


def _add_offloaded(optimizer: Any, earlier: list[tuple[Any, Any]]) -> None:
    _copied()
    for gradient, before in earlier:
        gradient.add_(before)
    for number in optimizer.norm_for_param_grads:
        group, _, start, count = optimizer.grad_position[number]
        whole = optimizer.single_partition_of_fp32_groups[group].grad
        if any(gradient is whole for gradient, _ in earlier):
            part = whole.view(-1).narrow(0, start, count)
            optimizer.norm_for_param_grads[number] = part.double().norm(2)


def _copied() -> None:
    """Wait for what is on its way to the CPU."""
    from deepspeed.accelerator import get_accelerator

    get_accelerator().synchronize()


def step(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around the optimizer's, which a script may call itself: what was left has had its step."""
    result = original(self, *args, **kwargs)
    _ended.discard(self)
    _before.pop(self, None)
    return result


def zero_grad(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around the optimizer's."""
    if self not in _running:  # some releases call it at the end of each backward
        _drop(self)
    return original(self, *args, **kwargs)


def zero_grad_of_engine(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around the engine's, which does not call the optimizer's."""
    if _keeps_sums(self.optimizer):
        _drop(self.optimizer)
    return original(self, *args, **kwargs)


def _drop(optimizer: Any) -> None:
    """Note that a script dropped what is there; after a step, which calls zero_grad as well, nothing is."""
    _before.pop(optimizer, None)
    sums = optimizer.averaged_gradients.values()
    if optimizer in _ended or any(gradients is not None for gradients in sums):
        _dropped.add(optimizer)
