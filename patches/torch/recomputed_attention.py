"""``Recomputed values … have different metadata``: the forward alone said which attention SDPA takes.

What the user sees: ``with sdpa_kernel(SDPBackend.MATH): loss = model(…).loss``, ``loss.backward()`` after it,
and a ``CheckpointError`` with the non-reentrant variant. The same where a switch of torch's
(``torch.backends.cuda.enable_flash_sdp(False)``) is turned between a block's forward and its backward, if by
the model's own code. The reentrant variant trains, the recomputation with the attention that is on by then.

Why: the recomputation runs in the backward. torch restores random numbers and autocast as they were in the
forward, not which backends of SDPA were on; each backend saves other tensors.

In every torch, 2.1 to 2.15. transformers 4 takes the reentrant variant by default: with vlmpatch's default
such a script would end in an error that it did not have.

The change: a checkpointed call remembers which backends are on when it begins, and in which order they are
tried when it ends; its recomputation has those. The order at the beginning need not be what the forward had:
torch settles it in a process's first attention, on a Hopper GPU with cuDNN's before the others
(``priority_order`` in ATen's sdp_utils.cpp). Left alone: calls with a ``context_fn`` of their own, torch's
debug mode, which takes none, what is traced, and the reentrant variant.

Upstream: https://github.com/pytorch/pytorch/issues/147995 (the same of another thing around the forward)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

from .._shared.checkpoint_contexts import Pair, look_at_entrance, run_in

# torch._C's: what asks whether a backend is on, and what turns it on and off; not each release has all
BACKENDS = {
    f"_get_{name}_sdp_enabled": f"_set_sdp_use_{name}"
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
}
Choice = tuple[list[bool], list[int]]  # which backends are on; the order of trying them


def look(code: Code) -> str | None:
    """What a recomputation runs in must be open."""
    look_at_entrance(code)
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Let the recomputation have the backends of its forward."""
    import torch

    backends = _Backends(torch._C)

    def remembered() -> Pair:
        forward = _Forward(backends)
        return (lambda: forward), functools.partial(_Again, backends, forward)

    run_in(patch, module, remembered)


class _Backends:
    """What an attention chooses from.

    Args:
        switches: where torch has its switches.
    """

    def __init__(self, switches: Any) -> None:
        known = [(asked, switch) for asked, switch in BACKENDS.items() if hasattr(switches, asked)]
        self._asks = [getattr(switches, asked) for asked, _ in known]
        self._sets = [getattr(switches, switch) for _, switch in known]
        # from torch 2.6 on
        self.order: Callable[[], list[int]] = getattr(switches, "_get_sdp_priority_order", list)
        self._set_order = getattr(switches, "_set_sdp_priority_order", None)

    def chosen(self) -> Choice:
        return [ask() for ask in self._asks], self.order()

    def change(self, now: Choice, wanted: Choice) -> None:
        if now == wanted:
            return
        on, order = wanted
        for switch, value in zip(self._sets, on, strict=True):
            switch(value)
        if order and self._set_order is not None:
            self._set_order(order)


class _Forward:
    """What a forward's attention chooses from."""

    __slots__ = ("backends", "on", "order")

    def __init__(self, backends: _Backends) -> None:
        self.backends = backends
        self.on, self.order = backends.chosen()

    def __enter__(self) -> None: ...

    def __exit__(self, *failure: object) -> None:
        self.order = self.backends.order()


class _Again:
    """Its recomputation."""

    __slots__ = ("backends", "before", "forward")

    def __init__(self, backends: _Backends, forward: _Forward) -> None:
        self.backends, self.forward = backends, forward

    def __enter__(self) -> None:
        self.before = self.backends.chosen()
        self.backends.change(self.before, (self.forward.on, self.forward.order))

    def __exit__(self, *failure: object) -> None:
        self.backends.change(self.backends.chosen(), self.before)
