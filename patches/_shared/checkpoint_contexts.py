"""What a non-reentrant checkpoint runs in, forward and recomputation, where nobody said otherwise."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

# Where every non-reentrant call comes by; from torch 2.15 on the second calls the first.
ENTRANCES = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
ASKED = "forward_context, recompute_context = context_fn()"
Make = Callable[[], AbstractContextManager[Any]]
Pair = tuple[Make, Make]  # of the forward, of the recomputation: a graph that is kept is recomputed again


def look_at_entrance(code: Code) -> None:
    """The non-reentrant variant must ask ``context_fn`` what it runs in."""
    entrance = next(filter(None, map(code.function, ENTRANCES)), None)
    if entrance is None or ASKED not in entrance:
        raise Unrecognised(f"{code.module} does not ask context_fn what a non-reentrant call runs in")


def run_in(patch: Patch, module: ModuleType, contexts: Callable[[], Pair]) -> None:
    """Let every call of ``module``, torch's, run in ``contexts()``, beside those of other patches.

    Left alone: a call with a ``context_fn`` of its own, torch's debug mode, which takes none, what is traced.
    """
    name = next(entrance for entrance in ENTRANCES if hasattr(module, entrance))
    names = list(inspect.signature(getattr(module, name)).parameters)
    context_fn, debug = (Argument(names.index(each), each) for each in ("context_fn", "debug"))
    traced = getattr(module, "_is_compiling", lambda *call: False)  # from torch 2.2 on

    def enter(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        untouched = module.noop_context_fn
        told = context_fn.of(args, kwargs, untouched)
        ours = told is untouched or isinstance(told, _Contexts)
        debugged = debug.of(args, kwargs) or getattr(module, "_checkpoint_debug_enabled", None)
        if not ours or debugged or traced(original, args, kwargs):
            return original(*args, **kwargs)
        pairs = told.pairs if isinstance(told, _Contexts) else ()
        args, kwargs = context_fn.replaced(args, kwargs, _Contexts((*pairs, contexts())))
        return original(*args, **kwargs)

    patch.wrap(module, name, enter)


class _Contexts:
    """A ``context_fn`` of what several patches ask for."""

    def __init__(self, pairs: tuple[Pair, ...]) -> None:
        self.pairs = pairs

    def __call__(self) -> tuple[_Together, _Together]:
        forwards, recomputations = zip(*self.pairs, strict=True)
        return _Together(forwards), _Together(recomputations)


class _Together(AbstractContextManager[None]):
    def __init__(self, parts: tuple[Make, ...]) -> None:
        self.parts = parts
        self.entered: list[contextlib.ExitStack] = []

    def __enter__(self) -> None:
        with contextlib.ExitStack() as stack:
            for part in self.parts:
                stack.enter_context(part())
            self.entered.append(stack.pop_all())

    def __exit__(self, *failure: Any) -> None:
        self.entered.pop().__exit__(*failure)
