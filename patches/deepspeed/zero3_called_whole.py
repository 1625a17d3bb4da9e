"""``weight should have at least three dimensions``: a ZeRO-3 module called by itself.

What the user sees: that, ``'weight' must be 2-D`` or ``but got weight of shape [0]``, where a script encodes
images in its data pipeline, calls a reward model, or trains with plain ``python`` and no launcher.

Why: every rank holds a part of each weight and an empty tensor in its place. DeepSpeed's engine gathers for
the forwards of its model; before it exists, or for a model it was never given, nobody does.

What is done: a module made under ``zero.Init`` gathers for a call from outside that comes to a weight which
is not there, after the ranks have met, without a collective, and know that all make it. A rank that calls
alone gets an error within a minute, a call from a worker process, or one that is meant to be trained through,
at once: module, rank and remedy. A forward that makes use of no weight, or has gathered them itself, runs as
it is. Once an engine has the model, nothing of this is left on it, and a module around it, made under the
same ``zero.Init`` (one that computes the loss), may be called as ever.

Every DeepSpeed. Upstream: https://github.com/modelscope/ms-swift/issues/938,
https://github.com/RLHF-V/RLAIF-V/issues/9, https://github.com/QwenLM/Qwen3-VL/issues/1473
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, ref

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.distributed import rank
from .._shared.rendezvous import attend, rendezvous
from .._shared.zero3_parameters import absent, told_of_touches, whole

REMEDY = "Encode in advance, without ZeRO-3, or let every rank make as many calls."
IN_WORKER = (
    "{name} was called in a worker process of rank {rank}, where the weights that ZeRO-3 keeps on other "
    "ranks cannot be had. Set dataloader_num_workers=0, or encode in advance, without ZeRO-3."
)
TRAINED = (
    "{name} was called for training on rank {rank} while its weights are partitioned and no DeepSpeed engine "
    "holds it. Start the script with torchrun or deepspeed, call what deepspeed.initialize (or the Trainer) "
    "returned and not the model itself; for a call that is not trained through use torch.no_grad()."
)

_hooked: WeakKeyDictionary[Any, Hooked] = WeakKeyDictionary()
_taken: WeakSet[Any] = WeakSet()  # what an engine has, and gathers for


def look(code: Code) -> str | None:
    """Modules must pass through one method when they are made, and one class when an engine takes them."""
    wanted = "DeepSpeedZeRoOffload.__init__"
    if code.module.endswith("partition_parameters"):
        wanted = "Init._post_init_method"
    function = code.function(wanted)
    if function is None or function.parameters[:2] != ("self", "module"):
        raise Unrecognised(f"{code.module} has no {wanted}(self, module)")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Gather for calls from outside until an engine takes the module."""
    if not module.__name__.endswith("partition_parameters"):
        patch.wrap(module.DeepSpeedZeRoOffload, "__init__", taken)
        return
    calls = Calls(patch)

    def made(original: Callable[..., Any], self: Any, /, module: Any) -> None:
        original(self, module)
        attend(patch)
        calls.watch(module)

    patch.wrap(module.Init, "_post_init_method", made)


def taken(original: Callable[..., Any], self: Any, /, module: Any, *args: Any, **kwargs: Any) -> None:
    """An engine takes ``module``: it gathers from now on."""
    for part in module.modules():
        _taken.add(part)
        if (hooked := _hooked.pop(part, None)) is not None:
            hooked.remove()
    original(self, module, *args, **kwargs)


def lacks(module: Any) -> bool:
    """Whether ``module`` has a parameter that is not here and that no engine gathers."""
    others = (part for part in module.modules() if part not in _taken)
    return any(absent(parameter) for part in others for parameter in part._parameters.values())


class Hooked:
    """The hooks of one module; it is gone when the module is, and the journal forgets them."""

    def __init__(self, module: Any) -> None:
        self._module: Callable[[], Any] = ref(module)
        self._handles: list[Any] = []

    def before(self, function: Callable[..., Any]) -> Any:
        """Have ``function`` called before each call."""
        return self._keep(self._module().register_forward_pre_hook(function))

    def after(self, function: Callable[..., Any]) -> Any:
        """Have ``function`` called after each call, whichever way it ends."""
        return self._keep(self._module().register_forward_hook(function, always_call=True))

    def remove(self) -> None:
        """Have nothing called any more."""
        for handle in self._handles:
            handle.remove()

    def _keep(self, handle: Any) -> Any:
        self._handles.append(handle)
        return handle


class Call(NamedTuple):
    """One call of a module."""

    module: Any
    gathered: contextlib.ExitStack  # what is whole until it ends


class Calls:
    """The calls this process is in the middle of, outermost first."""

    def __init__(self, patch: Patch) -> None:
        self.patch = patch
        self.process = os.getpid()
        self.running: list[Call] = []
        self.asked: Call | None = None  # the outermost that lacks a weight
        self.met = False  # the ranks have, for that one

    def watch(self, module: Any) -> None:
        """Be there before and after each call of ``module``."""
        if module in _hooked or next(module.parameters(), None) is None:
            return
        self.process = os.getpid()
        hooked = _hooked[module] = Hooked(module)

        # A deep copy (PEFT makes one of each module it trains whole) takes the hooks along, and nobody
        # removes them there: it was not made under zero.Init, and is no business of ours.
        def before(module: Any, args: Any) -> None:
            if module in _hooked:
                self.enter(module)

        def after(module: Any, args: Any, output: Any) -> None:
            if module in _hooked:
                self.leave()

        self.patch.hook(hooked.before, before)
        self.patch.hook(hooked.after, after)

    def enter(self, module: Any) -> None:
        """A call of ``module`` begins."""
        call = Call(module, contextlib.ExitStack())
        self.running.append(call)
        # An engine may have taken it while this was off.
        if not self.patch.active or self.patch.pauses:
            return
        if self.asked is None and lacks(module):
            self.asked, self.met = call, False
            call.gathered.enter_context(told_of_touches(self.touched))
        elif self.asked is not None and self.met:
            self.gather(call)

    def touched(self, parameter: Any) -> None:
        """The call that runs comes to ``parameter``, which is not here."""
        with importlib.import_module("torch")._C.DisableTorchFunction():
            if self.asked is not None and not self.met:
                self.check(self.asked.module)
                self.met = True
            innermost = self.running[-1]
            self.gather(innermost)
            innermost.gathered.enter_context(whole([parameter], changed=False))  # of another module

    def gather(self, call: Call) -> None:
        """Until ``call`` ends its module's own weights are whole."""
        with importlib.import_module("torch")._C.DisableTorchFunction():
            call.gathered.enter_context(whole(call.module._parameters.values(), changed=False))

    def check(self, module: Any) -> None:
        """Whether the call can be made at all.

        Raises:
            RuntimeError: it cannot; the text says why and what to do.
        """
        torch = importlib.import_module("torch")
        name = type(module).__name__
        if os.getpid() != self.process:
            raise RuntimeError(IN_WORKER.format(name=name, rank=rank()))
        trains = any(parameter.requires_grad for parameter in module.parameters())
        if module.training and trains and torch.is_grad_enabled():
            raise RuntimeError(TRAINED.format(name=name, rank=rank()))
        rendezvous(self.patch, module.parameters(), f"{name}, outside the engine,", why=REMEDY)

    def leave(self) -> None:
        """The innermost call ends, whichever way."""
        if self.running:
            with importlib.import_module("torch")._C.DisableTorchFunction():
                ended = self.running.pop()
                if ended is self.asked:
                    self.asked = None
                ended.gathered.close()
