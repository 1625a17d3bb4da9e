"""ZeRO-3 emptied the parameters of a recomputed block before that block's backward had used them.

What the user sees: with LoRA or any other frozen parameter, non-reentrant checkpointing ends in
``CheckpointError: Recomputed values for the following tensors have different metadata``, ``[3584]``
against ``[0]`` (DeepSpeed up to 0.19.2, torch from 2.5). With everything trainable, and on every
DeepSpeed since, it is only slower than it need be: each checkpointed block is gathered three times a
step, for the forward, for the recompute and for the backward.

Why: a module's parameters are gathered before its forward and released after it, also when that
forward is a recompute in the middle of a backward, a moment before the backward needs them. The
recompute keeps frozen parameters by reference, so releasing them empties what it has just saved.

What is done: while a backward runs, the release after a forward is left out, and the module is noted.
Its parameters go when DeepSpeed releases it after its own backward, as ever. Some modules have no such
moment (an input without grad, an output nobody used, a forward cut short by checkpoint's early stop):
those go when the backward of a module around them ends, and at the latest when the whole backward
does. A backward that ends in an exception has no end; what it left goes at the next forward.

A frozen embedding, whose output requires grad because a hook says so (``enable_input_require_grads``),
computes nothing in the backward and is not gathered for it. That is so of ``nn.Embedding``'s own forward
only: Ovis2's visual table is an ``nn.Embedding`` that multiplies by its weight, which the backward reads.

DeepSpeed 0.19.3 ended the crash by attributing frozen parameters to the module whose backward caused
the recompute. Both work side by side: a parameter is emptied when nobody holds it any more.

Left alone: ZenFlow, which transposes parameters around each forward, and parameters on NVMe, whose
few swap buffers cannot hold a whole block.

Upstream: https://github.com/deepspeedai/DeepSpeed/pull/8148 (the crash, from 0.19.3 on).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from vlmpatch.api import Code, Patch

from .._shared.compiling import compiling
from .._shared.known_shapes import recognise, sibling

Release = Callable[[Any, Any], None]

# Every shape these had from 0.14.4 to 0.19.8: digest and the release that brought it.
OFFLOAD_SHAPES = {
    "DeepSpeedZeRoOffload.pre_sub_module_forward_function": {
        "d564cc2ae898": "0.14.0",
        "9617ce8f766a": "0.15.4",
        "3ed20536f028": "0.18.1",
        "5c5e9480b473": "0.19.3",
    },
    "DeepSpeedZeRoOffload.post_sub_module_forward_function": {
        "64d923ce8769": "0.14.0",
        "7debe7cb678b": "0.15.4",
        "a5a3d11d07ab": "0.16.4",
        "c21e54bbd8a3": "0.17.0",
        "ae08b197403b": "0.18.1",
        "31ac5fa7367c": "0.19.3",
    },
    "DeepSpeedZeRoOffload.pre_sub_module_backward_function": {
        "bf8387cb2f0b": "0.14.0",
        "39868c338155": "0.15.4",
        "bc11e103ff40": "0.18.1",
        "062cc1849a00": "0.19.3",
    },
    "DeepSpeedZeRoOffload.post_sub_module_backward_function": {
        "cd0ac697ce14": "0.14.0",
        "65a2446eecbf": "0.15.4",
        "a307b08f7889": "0.16.4",
        "5d2fdd9f5116": "0.17.0",
        "08a293f42964": "0.18.1",
        "650f29e756c4": "0.19.3",
    },
}
COORDINATOR_SHAPES = {
    "PartitionedParameterCoordinator.fetch_sub_module": {
        "a04a199462ae": "0.14.0",
        "334f96612498": "0.16.3",
        "667344f99df7": "0.16.4",
        "f9e21f873a25": "0.16.5",
        "f31f0e8d5725": "0.17.0",
        "2c20978521b4": "0.18.6",
        "57d21d678ab7": "0.19.3",
    },
    "PartitionedParameterCoordinator.release_sub_module": {
        "1430cc15c275": "0.14.0",
        "6e33f0f2ca54": "0.16.3",
        "82ca18d80f5e": "0.16.4",
        "4b7391a6b408": "0.17.0",
        "297b3c6d619c": "0.18.0",
        "1f6ae2addb40": "0.19.3",
    },
    "PartitionedParameterCoordinator.__release_param": {
        "c87ed6731150": "0.14.0",
        "44e03e6e2862": "0.16.3",
        "198e1b490d98": "0.17.0",
    },
}


def look(code: Code) -> str | None:
    """Both files must be as one of the known releases has them."""
    recognise(code, OFFLOAD_SHAPES)
    recognise(sibling(code, "partitioned_param_coordinator"), COORDINATOR_SHAPES)
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Leave out releases inside a backward, and make up for them at the end of it."""
    import torch

    offload = module.DeepSpeedZeRoOffload
    task = torch._C._current_graph_task_id  # -1 outside a backward
    tracing = compiling()
    original_release = offload.post_sub_module_forward_function
    kept = Kept(original_release)

    def before_forward(original: Release, self: Any, /, sub_module: Any) -> None:
        if not (tracing() or _is_left_alone(self)):
            if (running := task()) != -1:
                kept.note(self, sub_module, running, backward=False)
            elif kept.modules:
                kept.release(self, since=0)
        original(self, sub_module)

    def after_forward(original: Release, self: Any, /, sub_module: Any) -> None:
        if tracing() or task() == -1 or _is_left_alone(self):
            original(self, sub_module)

    def before_backward(original: Release, self: Any, /, sub_module: Any) -> None:
        if _only_looks_up(sub_module) and not sub_module.weight.requires_grad:
            return
        if not _is_left_alone(self) and (running := task()) != -1:
            kept.note(self, sub_module, running, backward=True)
        original(self, sub_module)

    def after_backward(original: Release, self: Any, /, sub_module: Any) -> None:
        if kept.only_recomputed(self, sub_module):
            original_release(self, sub_module)
        else:
            original(self, sub_module)
        kept.release_inside(self, sub_module)

    patch.wrap(offload, "pre_sub_module_forward_function", before_forward)
    patch.wrap(offload, "post_sub_module_forward_function", after_forward)
    patch.wrap(offload, "pre_sub_module_backward_function", before_backward)
    patch.wrap(offload, "post_sub_module_backward_function", after_backward)


def _only_looks_up(sub_module: Any) -> bool:
    """Whether the forward is ``nn.Embedding``'s own, whose backward never reads the weight."""
    import torch

    forward = getattr(sub_module.forward, "__func__", None)  # of the instance, which may carry its own
    return forward is torch.nn.Embedding.forward


def _is_left_alone(offload: Any) -> bool:
    return getattr(offload, "zenflow", False) or offload.offload_device == "nvme"


class Gathered(NamedTuple):
    """The backward a module was gathered in, and whether for its own part of it."""

    task: int
    backward: bool


class Kept:
    """Modules that a running backward has gathered and not yet released, of every engine.

    Args:
        release: DeepSpeed's release after a forward, unpatched.
    """

    def __init__(self, release: Release) -> None:
        self._release = release
        # engine's offload -> module -> where it was gathered last. Empty between backwards.
        self.modules: dict[Any, dict[Any, Gathered]] = {}
        self._told: dict[Any, int] = {}

    def note(self, offload: Any, sub_module: Any, task: int, *, backward: bool) -> None:
        """``sub_module`` is about to be gathered in backward ``task``, for its own backward or not."""
        modules = self.modules.setdefault(offload, {})
        before = modules.get(sub_module)
        modules[sub_module] = Gathered(task, backward or (before is not None and before.backward))
        if self._told.get(offload) != task:
            self._told[offload] = task
            _at_end_of_backward(lambda: self.release(offload, since=task))

    def only_recomputed(self, offload: Any, sub_module: Any) -> bool:
        """Whether ``sub_module`` was gathered without DeepSpeed knowing of a backward to come.

        DeepSpeed counts forwards against backwards. The count is short in the second backward through
        one graph (``retain_graph``), where DeepSpeed from 0.19.3 on asserts it began what it ends.
        """
        gathered = self.modules.get(offload, {}).get(sub_module)
        return gathered is not None and not gathered.backward

    def release_inside(self, offload: Any, sub_module: Any) -> None:
        """The backward of ``sub_module`` is over, and with it that of every module in it."""
        modules = self.modules.get(offload)
        if modules is None:
            return
        modules.pop(sub_module, None)
        if modules and sub_module._modules:
            for inner in sub_module.modules():
                if modules.pop(inner, None) is not None:
                    self._release(offload, inner)

    def release(self, offload: Any, since: int) -> None:
        """Backward ``since`` is over, and with it every later one: those ran inside it."""
        modules = self.modules.get(offload, {})
        for sub_module in [module for module, at in modules.items() if at.task >= since]:
            del modules[sub_module]
            self._release(offload, sub_module)
        if not modules:
            self.modules.pop(offload, None)
            self._told.pop(offload, None)


def _at_end_of_backward(function: Callable[[], None]) -> None:
    import torch

    torch.autograd.Variable._execution_engine.queue_callback(function)
