"""Everything about a module that a change of ours could leave its trace in."""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Iterable
from types import FunctionType, ModuleType
from typing import Any

Snapshot = dict[str, Any]
# The import system's own, and what Python writes there when it warns.
_NOT_OURS = {"__warningregistry__", "__spec__", "__loader__", "__cached__", "__builtins__"}


class Same:
    """An object by identity; kept alive, so that its id is not given anew."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.thing is other.thing

    def __repr__(self) -> str:
        return f"{type(self.thing).__name__} at {id(self.thing):x}"


def snapshot(modules: Iterable[ModuleType], also: Iterable[type] = ()) -> Snapshot:
    """Every module's names, classes and functions: identity, defaults, bases, signature, words."""
    taken: Snapshot = {"environ": dict(os.environ)}
    classes: dict[int, type] = {id(cls): cls for cls in also}
    for module in modules:
        for name, value in list(vars(module).items()):
            if name in _NOT_OURS:
                continue
            taken[f"{module.__name__}.{name}"] = Same(value)
            if isinstance(value, type) and value.__module__ == module.__name__:
                classes[id(value)] = value
            _function(taken, f"{module.__name__}.{name}", value)
    for cls in classes.values():
        path = f"{cls.__module__}.{cls.__qualname__}({id(cls):x})"
        taken[path] = (cls.__mro__, list(vars(cls)), cls.__doc__)
        for name, raw in list(vars(cls).items()):
            taken[f"{path}.{name}"] = Same(raw)
            _function(taken, f"{path}.{name}", getattr(raw, "__func__", raw))
    return taken


def _function(taken: Snapshot, path: str, value: Any) -> None:
    if isinstance(value, FunctionType):
        taken[f"{path}()"] = (
            *(Same(value.__defaults__), Same(value.__kwdefaults__), Same(value.__code__), value.__doc__),
            *(sorted(vars(value)), str(_signature(value))),
        )


def _signature(function: FunctionType) -> object:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def differences(before: Snapshot, after: Snapshot, but: Collection[str] = ()) -> list[str]:
    """What is not as it was, in words; names in ``but`` are passed over."""
    names = sorted(n for n in before.keys() | after.keys() if n.removesuffix("()") not in but)
    return [f"{n}: {before.get(n)} -> {after.get(n)}" for n in names if before.get(n) != after.get(n)]
