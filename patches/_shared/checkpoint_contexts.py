"""What a non-reentrant checkpoint runs in, forward and recomputation, where nobody said otherwise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised, signature

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
    names = list(signature(getattr(module, name)).parameters)
    context_fn, debug = (Argument(names.index(each), each) for each in ("context_fn", "debug"))
    traced = getattr(module, "_is_compiling", lambda *call: False)  # from torch 2.2 on

    def enter(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        untouched = module.noop_context_fn
        told = context_fn.of(args, kwargs, untouched)
        if isinstance(told, _Contexts):  # another patch has asked all below, for this very call
            told.pairs.append(contexts())
            return original(*args, **kwargs)
        debugged = debug.of(args, kwargs) or getattr(module, "_checkpoint_debug_enabled", None)
        if told is not untouched or debugged or traced(original, args, kwargs):
            return original(*args, **kwargs)
        args, kwargs = context_fn.replaced(args, kwargs, _Contexts([contexts()]))
        return original(*args, **kwargs)

    patch.wrap(module, name, enter)


class _Contexts:
    """The ``context_fn`` of one call: what several patches ask for."""

    def __init__(self, pairs: list[Pair]) -> None:
        self.pairs = pairs

    def __call__(self) -> tuple[_Together, _Together]:
        forwards, recomputations = zip(*self.pairs, strict=True)
        return _Together(forwards), _Together(recomputations)


class _Together:
    """Contexts of patches, none of which raises; an ExitStack's calls would be most of what a block costs."""

    __slots__ = ("entered", "parts")

    def __init__(self, parts: tuple[Make, ...]) -> None:
        self.parts = parts
        self.entered: list[list[AbstractContextManager[Any]]] = []

    def __enter__(self) -> None:
        contexts = [part() for part in self.parts]
        for context in contexts:
            context.__enter__()
        self.entered.append(contexts)

    def __exit__(self, *failure: Any) -> None:
        for context in reversed(self.entered.pop()):
            context.__exit__(*failure)
