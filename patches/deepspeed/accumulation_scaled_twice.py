"""Gradients divided by ``gradient_accumulation_steps`` twice.

What the user sees: nothing, or a ``grad_norm`` that shrinks as accumulation grows. Under ZeRO-1 and ZeRO-2,
with a model that returns its logits beside its loss (every model of transformers), gradients come out half
as large with two micro-batches a window, an eighth with eight. Clipping and SGD see it; Adam hides most.

Why: since ``loss.backward()`` may be called on what the engine returned, a hook on each returned tensor
divides its gradient by the accumulation steps. The loss is made from the logits: their gradient has been
divided already.

What is done: ``engine.backward(loss)`` divides the loss itself, as it did before 0.18.3 and does again from
0.19.6 on, and the hooks divide nothing meanwhile. In 0.18.3 they did so under ``scale_wrt_gas=False`` too.
For ``loss.backward()``, which is still wrong in 0.19.8: what one returned tensor passes back to another
inside the model is multiplied again before that other's hook divides it. The hook for that sits on the graph
between the two; what the engine returns stays what the model returned, object for object. ZeRO-3 has nothing
between them, and is right.

Left alone: pipelines, and ``loss.backward()`` of a compiled engine. Trainers that hand
``scale_wrt_gas=False``, HF's among them, are affected on 0.18.3 alone.

Since DeepSpeed 0.18.3; ``engine.backward`` until 0.19.6. Measured on 0.18.5, ``loss.backward()`` on 0.19.8
too.
https://github.com/deepspeedai/DeepSpeed/pull/7665 brought it,
https://github.com/deepspeedai/DeepSpeed/pull/8245 ended it for ``engine.backward``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from types import ModuleType
from typing import Any
from weakref import WeakSet, ref

from vlmpatch.api import Argument, Code, Patch, Unrecognised, assign, of_module

from .._shared.asked_for import is_noted
from .._shared.compiling import compiling

ENGINE = "DeepSpeedEngine"
HOOK = "_backward_prologue_per_tensor"
LOSS, SCALE, GRAD = Argument(0, "loss"), Argument(2, "scale_wrt_gas"), Argument(0, "grad")
_KEPT = "_scale_wrt_gas"  # what the last backward was told; 0.18.3 forgot it

_running: WeakSet[Any] = WeakSet()  # engines in a backward; their own flag stays set where one raised


def look(code: Code) -> str | None:
    """A hook must divide."""
    hook, backward = code.function(f"{ENGINE}.{HOOK}"), code.function(f"{ENGINE}.backward")
    if hook is None or "grad / self.gradient_accumulation_steps()" not in hook:
        return "no hook on what the engine returns divides a gradient"
    if backward is None or backward.parameters[:4] != ("self", "loss", "retain_graph", "scale_wrt_gas"):
        raise Unrecognised(f"{ENGINE}.backward in {code.path} is not as any known release has it")
    return None


def leaves_it_to_the_hook(code: Code) -> bool:
    """Whether ``engine.backward`` does not divide the loss itself."""
    backward = code.function(f"{ENGINE}.backward")
    divides = "loss = loss / self.gradient_accumulation_steps()"
    return backward is not None and divides not in backward.source.replace("gas_scaled_loss", "")


def apply(patch: Patch, module: ModuleType) -> None:
    """Divide once."""
    patch.wrap(module.DeepSpeedEngine, "forward", forward)
    if leaves_it_to_the_hook(of_module(module)):
        patch.wrap(module.DeepSpeedEngine, "backward", backward)
        patch.wrap(module.DeepSpeedEngine, HOOK, per_tensor)
    else:
        patch.wrap(module.DeepSpeedEngine, "backward", noted)


def forward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around ``DeepSpeedEngine.forward``, which puts its hooks on what the model returned."""
    import torch

    outputs = original(self, *args, **kwargs)
    if _in_windows(self) and torch.is_grad_enabled() and not compiling()() and not self.is_compiled:
        hook_between(self, {(t.grad_fn, t.output_nr) for t in _tensors(outputs) if t.grad_fn is not None})
    return outputs


def hook_between(engine: Any, ends: Collection[tuple[Any, int]]) -> None:
    """Multiply what is passed from one of ``ends`` to another; as many nodes are looked at as lie between."""
    if len(ends) < 2:
        return
    nodes = {node for node, _ in ends}
    first = min(map(_number, nodes))  # what leads to it was made later, and has a higher number
    waiting = [*nodes]
    while waiting:
        node = waiting.pop()
        edges = node.next_functions
        if inner := frozenset(place for place, edge in enumerate(edges) if edge in ends):
            node.register_hook(functools.partial(_multiply, ref(engine), inner))
        new = {next_ for next_, _ in edges if next_ is not None and _number(next_) > first} - nodes
        nodes |= new
        waiting += new


def _number(node: Any) -> float:
    """When a node of the graph was made; those of parameters count as made first, and lead nowhere."""
    number = getattr(node, "_sequence_nr", lambda: "inf")  # a custom function's, before torch 2.1
    return float(number()) if node.next_functions else -1.0


def _multiply(engine: ref[Any], inner: Collection[int], gradients: Any, _given: Any) -> Any:
    found = engine()
    if found is None or found in _running or getattr(found, _KEPT, True) is False or is_noted():
        return None
    steps = found.gradient_accumulation_steps()
    return tuple(
        gradient * steps if place in inner and gradient is not None else gradient
        for place, gradient in enumerate(gradients)
    )


def _tensors(outputs: Any) -> Iterator[Any]:
    """As DeepSpeed looks for them."""
    import torch

    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, (tuple, list, dict)):
        for value in outputs.values() if isinstance(outputs, dict) else outputs:
            yield from _tensors(value)


def backward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around a ``DeepSpeedEngine.backward`` that leaves the division to the hooks."""
    if not _in_windows(self):
        return original(self, *args, **kwargs)
    divides = SCALE.of(args, kwargs, True)
    if divides:
        args, kwargs = LOSS.replaced(args, kwargs, LOSS.of(args, kwargs) / self.gradient_accumulation_steps())
    args, kwargs = SCALE.replaced(args, kwargs, False)
    try:
        return noted(original, self, *args, **kwargs)
    finally:
        if hasattr(self, _KEPT):  # for a loss.backward() that comes after
            assign(self, _KEPT, divides)


def noted(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around one that divides by itself."""
    _running.add(self)
    try:
        return original(self, *args, **kwargs)
    finally:
        _running.discard(self)


def per_tensor(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around the hook on each tensor that the engine returned."""
    return GRAD.of(args, kwargs) if self in _running else original(self, *args, **kwargs)


def _in_windows(engine: Any) -> bool:
    return not engine.pipeline_parallelism and engine.gradient_accumulation_steps() > 1
