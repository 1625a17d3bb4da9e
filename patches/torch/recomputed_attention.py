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

import contextlib
import functools
from collections.abc import Iterator
from types import ModuleType

from vlmpatch.api import Code, Patch

from .._shared.checkpoint_contexts import Pair, look_at_entrance, run_in

# torch._C's: what asks whether a backend is on, and what turns it on and off. Spelled once: Python's cache
# of attributes would keep a name made anew in each call
BACKENDS = {
    f"_get_{name}_sdp_enabled": f"_set_sdp_use_{name}"
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
}
Choice = tuple[dict[str, bool], list[int]]  # by its switch, whether a backend is on; the order of trying them


def look(code: Code) -> str | None:
    """What a recomputation runs in must be open."""
    look_at_entrance(code)
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Let the recomputation have the backends of its forward."""
    run_in(patch, module, _remembered)


def _remembered() -> Pair:
    forward = _Forward()
    return (lambda: forward), functools.partial(_again, forward)


class _Forward:
    """What a forward's attention chooses from."""

    __slots__ = ("on", "order")

    def __init__(self) -> None:
        self.on, self.order = _chosen()

    def __enter__(self) -> None: ...

    def __exit__(self, *failure: object) -> None:
        self.order = _order()


@contextlib.contextmanager
def _again(forward: _Forward) -> Iterator[None]:
    before = _chosen()
    _choose((forward.on, forward.order))
    try:
        yield
    finally:
        _choose(before)


def _chosen() -> Choice:
    import torch

    on = {switch: getattr(torch._C, asked, None) for asked, switch in BACKENDS.items()}
    return {switch: asked() for switch, asked in on.items() if asked is not None}, _order()


def _order() -> list[int]:
    """Of trying them, which torch knows from 2.6 on."""
    import torch

    order: list[int] = getattr(torch._C, "_get_sdp_priority_order", list)()
    return order


def _choose(chosen: Choice) -> None:
    import torch

    if chosen == _chosen():
        return
    on, order = chosen
    for switch, value in on.items():
        getattr(torch._C, switch)(value)
    if order:
        torch._C._set_sdp_priority_order(order)
