"""Gradients divided by ``gradient_accumulation_steps`` twice.

What the user sees: nothing, or a ``grad_norm`` that shrinks as accumulation grows. Under ZeRO-1 and ZeRO-2,
with a model that returns its logits beside its loss (every model of transformers), gradients come out half
as large with two micro-batches a window, an eighth with eight. Clipping and SGD see it; Adam hides most.

Why: since ``loss.backward()`` may be called on what the engine returned, a hook on each returned tensor
divides its gradient by the accumulation steps. The loss is made from the logits: their gradient has been
divided already.

What is done: ``engine.backward(loss)`` divides the loss itself, as it did before 0.18.3 and does again from
0.19.6 on, and the hooks divide nothing meanwhile. In 0.18.3 they did so under ``scale_wrt_gas=False`` too.
For ``loss.backward()``, which is still wrong in 0.19.8, what the engine returns are views: DeepSpeed's hooks
sit on these, and the loss was made from what lies behind them. ZeRO-3 does so by itself, and is right.

Left alone: pipelines, and ``loss.backward()`` of a compiled engine. Trainers that hand
``scale_wrt_gas=False``, HF's among them, are affected on 0.18.3 alone.

Since DeepSpeed 0.18.3; ``engine.backward`` until 0.19.6. Measured on 0.18.5, ``loss.backward()`` on 0.19.8
too.
https://github.com/deepspeedai/DeepSpeed/pull/7665 brought it,
https://github.com/deepspeedai/DeepSpeed/pull/8245 ended it for ``engine.backward``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakSet

from vlmpatch.api import Code, Patch, Unrecognised, of_module

from .._shared.compiling import compiling

ENGINE = "DeepSpeedEngine"
HOOK = "_backward_prologue_per_tensor"
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


def forward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around ``DeepSpeedEngine.forward``, which puts its hooks on what the model returned."""
    import torch

    if not _in_windows(self) or not torch.is_grad_enabled() or compiling()() or self.is_compiled:
        return original(self, *args, **kwargs)
    handle = self.module.register_forward_hook(lambda module, inputs, outputs: views(outputs))
    try:
        return original(self, *args, **kwargs)
    finally:
        handle.remove()


def views(outputs: Any) -> Any:
    """``outputs`` with a view in the place of each tensor; a dictionary, as ModelOutput, stays the same."""
    import torch

    if isinstance(outputs, torch.Tensor):
        return outputs.view_as(outputs) if outputs.grad_fn is not None else outputs
    if isinstance(outputs, dict):
        for name, value in [*outputs.items()]:
            if (view := views(value)) is not value:
                outputs[name] = view
    elif hasattr(outputs, "_make"):  # a namedtuple
        return outputs._make(map(views, outputs))
    elif type(outputs) in (tuple, list):
        return type(outputs)(map(views, outputs))
    return outputs


def backward(
    original: Callable[..., Any],
    self: Any,
    /,
    loss: Any,
    retain_graph: bool = False,
    scale_wrt_gas: bool = True,
    **others: Any,
) -> Any:
    """Around ``DeepSpeedEngine.backward``."""
    if not _in_windows(self):
        return original(self, loss, retain_graph, scale_wrt_gas, **others)
    scaled = loss / self.gradient_accumulation_steps() if scale_wrt_gas else loss
    _running.add(self)
    try:
        return original(self, scaled, retain_graph, False, **others)
    finally:
        _running.discard(self)
        if hasattr(self, _KEPT):  # for a loss.backward() that comes after
            setattr(self, _KEPT, scale_wrt_gas)


def per_tensor(original: Callable[..., Any], self: Any, /, grad: Any) -> Any:
    """Around the hook on each tensor that the engine returned."""
    return grad if self in _running else original(self, grad)


def _in_windows(engine: Any) -> bool:
    return not engine.pipeline_parallelism and engine.gradient_accumulation_steps() > 1
