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
tried; its recomputation has those. Left alone: calls with a ``context_fn`` of their own, torch's debug mode,
which takes none, what is traced, and the reentrant variant.

Upstream: https://github.com/pytorch/pytorch/issues/147995 (the same of another thing around the forward)
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

# Where every non-reentrant call comes by; from torch 2.15 on the second calls the first.
ENTRANCES = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
ASKED = "forward_context, recompute_context = context_fn()"
BACKENDS = ("flash", "mem_efficient", "math", "cudnn", "overrideable")  # as torch._C spells them


def look(code: Code) -> str | None:
    """The non-reentrant variant must ask ``context_fn`` what it runs in."""
    entrance = next(filter(None, map(code.function, ENTRANCES)), None)
    if entrance is None or ASKED not in entrance:
        raise Unrecognised(f"{code.module} does not ask context_fn what a non-reentrant call runs in")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Let the recomputation have the backends of its forward."""
    name = next(entrance for entrance in ENTRANCES if hasattr(module, entrance))
    names = list(inspect.signature(getattr(module, name)).parameters)
    context_fn, debug = (Argument(names.index(each), each) for each in ("context_fn", "debug"))
    traced = getattr(module, "_is_compiling", lambda *call: False)  # from torch 2.2 on

    def enter(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        untouched = module.noop_context_fn
        told = context_fn.of(args, kwargs, untouched) is not untouched
        debugged = debug.of(args, kwargs) or getattr(module, "_checkpoint_debug_enabled", None)
        if not (told or debugged or traced(original, args, kwargs)):
            backends = Backends()
            contexts = contextlib.nullcontext(), backends
            args, kwargs = context_fn.replaced(args, kwargs, lambda: contexts)
        return original(*args, **kwargs)

    patch.wrap(module, name, enter)


class Backends:
    """Those that are on now. It may be entered again: a graph that is kept is recomputed at each backward."""

    def __init__(self) -> None:
        self.chosen = _chosen()
        self.before: list[Any] = []

    def __enter__(self) -> None:
        self.before.append(_chosen())
        _choose(self.chosen)

    def __exit__(self, *failure: object) -> None:
        _choose(self.before.pop())


def _chosen() -> tuple[dict[str, bool], list[int]]:
    """Which backends are on, and the order in which they are tried, where torch has one (from 2.6 on)."""
    import torch

    on = {name: getattr(torch._C, f"_get_{name}_sdp_enabled", None) for name in BACKENDS}
    order = getattr(torch._C, "_get_sdp_priority_order", list)
    return {name: asked() for name, asked in on.items() if asked is not None}, order()


def _choose(chosen: tuple[dict[str, bool], list[int]]) -> None:
    import torch

    if chosen == _chosen():
        return
    on, order = chosen
    for name, value in on.items():
        getattr(torch._C, f"_set_sdp_use_{name}")(value)
    if order:
        torch._C._set_sdp_priority_order(order)
