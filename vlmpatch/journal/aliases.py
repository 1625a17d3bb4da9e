"""Under which names a function is found, so that what stands in for it is found under every one.

A function pickles by its own ``__module__`` and ``__qualname__``, and what a package re-exports is one
object under several names. Where a patch asks for a name of the package that defines the function, all these
names are meant, whichever module imported it. Where it asks for what a module took from another package
(``open``), that one name is. What a module has renamed when it imported it (``from torch import save as
keep``) stays the function itself: it cannot be told from one of the module's own.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from types import ModuleType
from typing import Any, NamedTuple


class Name(NamedTuple):
    """An attribute of a module or a class."""

    holder: Any
    name: str


def own_name(function: Any) -> Name | None:
    """Where ``function`` lies as its ``__module__`` and ``__qualname__`` say; None where it does not."""
    qualname = getattr(function, "__qualname__", None)
    holder: Any = sys.modules.get(getattr(function, "__module__", None) or "")
    if not isinstance(qualname, str) or holder is None:
        return None
    *outer, name = qualname.split(".")
    for each in outer:
        holder = _namespace(holder).get(each)
    found = _namespace(holder).get(name)
    return Name(holder, name) if getattr(found, "__func__", found) is function else None


def is_of_the_package(own: Name, module: ModuleType) -> bool:
    """Whether the module that defines a function and ``module`` are of one package."""
    home = own.holder if isinstance(own.holder, ModuleType) else sys.modules.get(own.holder.__module__)
    return home is not None and _package(home) == _package(module)


def everywhere(function: Any, names: Collection[str]) -> Collection[Name]:
    """The modules that hold ``function`` under one of ``names``."""
    found = {}
    # Asked for every function that is wrapped, of thousands of modules: no call that can be spared.
    for module in list(sys.modules.values()):
        kind = type(module)
        if kind is ModuleType:
            namespace = module.__dict__
        elif issubclass(kind, ModuleType):
            namespace = _namespace(module)
        else:
            continue
        for name in names:
            if namespace.get(name) is function:
                found[id(module), name] = Name(module, name)
    return found.values()


def beside(cls: type, function: Any, name: str) -> Iterator[Name]:
    """The other attributes of ``cls`` that are ``function``, as torch's ``Module.__call__`` is another's."""
    held = list(vars(cls).items())
    return (Name(cls, other) for other, value in held if value is function and other != name)


def _package(module: ModuleType) -> str:
    return module.__name__.partition(".")[0]


def _namespace(holder: Any) -> Any:
    if isinstance(holder, type):
        return vars(holder)
    # Not vars(): that loads a module whose loading was put off.
    return object.__getattribute__(holder, "__dict__") if issubclass(type(holder), ModuleType) else {}
