"""An error that was caught in a checkpointed forward comes back in every step after it.

What the user sees: a cell of a notebook is interrupted, or runs out of memory, and from then on every run
ends in that same error, or in ``A different number of tensors was saved``, whatever is trained; so too where
a script keeps an exception that it caught. With the non-reentrant variant; the reentrant one goes on.

Why: a checkpointed call sets hooks for what its block saves, and takes them away after the block. Where the
block raises they stay until the exception and its traceback are forgotten, and a notebook keeps the last.
Until then all that is saved is taken for the failed block's, whose recomputation fails once more.

Since torch 2.1, until 2.13. transformers 4 takes the reentrant variant by default: with vlmpatch's default
this would be an error that the script did not have.

The change: hooks whose call is not running any more leave what is saved as it is, and the next checkpointed
call ends them. Left alone: those of other code than ``checkpoint`` (torch's composable ``checkpoint``). It
looks for the call at each tensor that is saved.

Upstream: https://github.com/pytorch/pytorch/pull/184018
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

from vlmpatch.api import Code, Patch, Unrecognised

CALL, ENTRANCE, HOOK = "checkpoint", "_checkpoint_without_reentrant_generator", "_checkpoint_hook"
MADE = f"gen = {ENTRANCE}("
NEAR = 16  # frames, at most, from what a call makes to the call: two for each patch in between


def look(code: Code) -> str | None:
    """The call must not tell what set its hooks of an error."""
    call = code.function(CALL)
    if call is None or code.function(f"{HOOK}.__init__") is None or MADE not in call:
        raise Unrecognised(f"{code.module}.{CALL} sets its hooks in a way unknown to us")
    if "gen.throw" in call:
        return f"{code.module}.{CALL} takes its hooks away from a block that raises"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Have hooks end with their call."""
    import torch

    push = torch._C._autograd._push_saved_tensors_default_hooks
    code = inspect.unwrap(getattr(module, CALL)).__code__
    waiting = _OfThread()

    def begin(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        waiting.end_what_was_left()
        generator = original(*args, **kwargs)
        if (call := _near(code)) is not None:
            waiting.calls.append(_Waiting(weakref.ref(generator), call))
        return generator

    def enter(original: Callable[..., Any], self: Any, /) -> None:
        if (call := _near(code)) is None:
            original(self)
        else:
            hooks = _Hooks(self, call)
            push(hooks.pack, hooks.unpack)

    patch.wrap(module, ENTRANCE, begin)
    patch.wrap(getattr(module, HOOK), "__enter__", enter)


class _Waiting(NamedTuple):
    """What is to take hooks away, and the id of its call's frame."""

    generator: weakref.ref[Any]
    call: int

    @property
    def is_open(self) -> bool:
        generator = self.generator()
        return generator is not None and generator.gi_frame is not None

    def end(self) -> None:
        with contextlib.suppress(Exception):  # of a context of the block's, long after the block
            if (generator := self.generator()) is not None:
                generator.close()


class _OfThread(threading.local):
    """The calls of a thread, outermost first."""

    def __init__(self) -> None:
        self.calls: list[_Waiting] = []

    def end_what_was_left(self) -> None:
        """Forget the calls that have ended, and end those that an error left open."""
        self.calls = [each for each in self.calls if each.is_open]
        if not self.calls:
            return
        running = {id(frame) for frame in _frames()}
        for each in reversed(self.calls):
            if each.call not in running:
                each.end()
        self.calls = [each for each in self.calls if each.is_open]


class _AsItIs(NamedTuple):
    tensor: Any


class _Hooks:
    """Those of a call, for as long as it runs."""

    def __init__(self, hooks: Any, call: int) -> None:
        self.hooks, self.call = hooks, call

    def pack(self, tensor: Any) -> Any:
        running = any(id(frame) == self.call for frame in _frames())
        return self.hooks.pack_hook(tensor) if running else _AsItIs(tensor)

    def unpack(self, packed: Any) -> Any:
        return packed.tensor if isinstance(packed, _AsItIs) else self.hooks.unpack_hook(packed)


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _near(code: CodeType) -> int | None:
    """The id of the frame that runs ``code``, not far up; no other has it while a traceback keeps that."""
    return next((id(frame) for frame in itertools.islice(_frames(), NEAR) if frame.f_code is code), None)
