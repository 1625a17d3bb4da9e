"""``torch.autograd.grad`` through an engine counted as a backward of that engine.

What the user sees: a gradient penalty, a saliency map, a step against an adversary: gradients of an input are
asked for with ``torch.autograd.grad``, on what the engine returned. ZeRO-1 and ZeRO-2 end in
``IndexError: list index out of range``, stage 0 in ``Direct calls to tensor.backward() are not supported``,
fp16 in ``Loss scaling is required for this configuration``. Under ZeRO-3, and under ZeRO-1 with accumulation,
nothing is seen: the next step is taken with other gradients, and what comes back has been divided by the
accumulation steps. After three steps a small network is off by 5 to 10 % of its largest weights.

Why: tensors that an engine returned have hooks that begin a backward of that engine, divide by the
accumulation steps, and have the backward's end called when autograd is done. The end reduces buckets that
nothing was put in, and counts a micro-batch.

The change: such a hook does nothing where autograd adds to no parameter of the engine and, on its way down,
leaves out a leaf that a backward would reach. A ``loss.backward()`` leaves out none, be it that it comes to
no parameter of this rank: other ranks may wait for its end. ``engine.backward`` is not looked at.
Transforms of ``torch.func`` add to no parameter; later releases leave them alone themselves.

Left alone: under ZeRO-3 a second way through one graph, on which the weights are empty (F103).

Since DeepSpeed 0.18.3; measured on 0.19.8. No upstream report was found.
https://github.com/deepspeedai/DeepSpeed/pull/7665 brought it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.asked_for import note

MANAGER, MAKE = "OutputBackwardHookManager", "_make_backward_hook"
PER_TENSOR = "preprocess_per_tensor_fn"  # of a manager: a method of its engine
TENSOR = Argument(0, "tensor")
LEAF = "AccumulateGrad"


def look(code: Code) -> str | None:
    """Hooks on what an engine returned must be made in one place."""
    if code.class_names(MANAGER) is None:
        return "no hook on what the engine returns begins a backward"
    made = code.function(f"{MANAGER}.{MAKE}")
    if made is None or made.parameters != ("self", "tensor") or "self.preprocess_once_fn()" not in made:
        raise Unrecognised(f"{MANAGER}.{MAKE} in {code.path} is not as any known release has it")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Let nothing begin where gradients are asked for."""
    patch.wrap(module.OutputBackwardHookManager, MAKE, make)


def make(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around what makes the hook on one tensor that an engine returned."""
    hook = original(self, *args, **kwargs)
    engine = getattr(getattr(self, PER_TENSOR, None), "__self__", None)
    if engine is None:
        return hook
    # Not the tensor's own node: that keeps its hooks.
    below = [node for node, _ in TENSOR.of(args, kwargs).grad_fn.next_functions]

    def of_a_backward(gradient: Any) -> Any:
        if not engine._running_engine_backward and is_asked_for(engine.module.parameters(), below):
            note()
            return gradient
        return hook(gradient)

    return of_a_backward


def is_asked_for(parameters: Iterable[Any], below: Iterable[Any]) -> bool:
    """Whether autograd, in one of whose hooks we are, was asked for gradients and adds to no parameter.

    Args:
        parameters: that a backward would add to.
        below: nodes that it would come to from here.
    """
    import torch

    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True  # a transform of torch.func, which takes gradients of what it was given and adds none
    executes = torch._C._will_engine_execute_node
    try:
        if any(executes(_leaf_of(parameter)) for parameter in parameters if parameter.requires_grad):
            return False
        leaf = _first_leaf(below)
        return leaf is not None and not executes(leaf)
    except RuntimeError:  # of a leaf in ``torch.autograd.grad``: it is one whose gradient was asked for
        return True


def _leaf_of(parameter: Any) -> Any:
    import torch

    with torch.enable_grad():
        return parameter.expand_as(parameter).grad_fn.next_functions[0][0]


def _first_leaf(nodes: Iterable[Any]) -> Any:
    """The leaf under ``nodes`` that is found first; on the way to it are fewer nodes than in a graph."""
    seen, left = set(), [*nodes]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        if type(node).__name__ == LEAF:
            return node
        seen.add(node)
        left += [following for following, _ in node.next_functions]
    return None
