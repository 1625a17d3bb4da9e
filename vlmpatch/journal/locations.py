"""Where a value lies: an attribute, an item of a mapping, a parameter's default.

A location is read and written by identity: what is put back is the very object that was there, so that
after an undo nobody can tell that we were here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, MutableMapping
from types import FunctionType, ModuleType
from typing import Any

ABSENT: Any = type("ABSENT", (), {"__repr__": lambda self: "absent"})()


class Location:
    """One location. Its owner is not kept alive where that can be helped: a run's objects must be free to go.

    Args:
        owner: what holds the value.
        name: under which name or key.
    """

    def __init__(self, owner: Any, name: Any) -> None:
        self.owner = _reference(owner)
        self.name = name
        self.key = (type(self).__name__, id(owner), name)

    @property
    def alive(self) -> bool:
        """Whether the owner still is."""
        return self.owner() is not None

    def same(self, other: Location) -> bool:
        """Whether both are one location."""
        return self.key == other.key and self.owner() is other.owner()

    def held(self) -> Any:
        """What lies there now, or ``ABSENT``."""
        raise NotImplementedError

    def put(self, value: Any) -> None:
        """Write ``value``; ``ABSENT`` takes away what is there."""
        raise NotImplementedError

    def holds(self, value: Any) -> bool:
        """Whether what lies there is ``value`` itself."""
        held = self.held()
        # os.environ, and properties that compute, hand out a new but equal object each time.
        plain = type(held) is type(value) and isinstance(held, (str, bytes, int, float))
        return held is value or (plain and bool(held == value))


class Attribute(Location):
    """``owner.name``, in the owner's own namespace or behind a property."""

    def held(self) -> Any:
        """See ``Location.held``."""
        owner = self.owner()
        if hasattr(getattr(type(owner), self.name, None), "__set__"):  # a property, a slot
            return getattr(owner, self.name, ABSENT)
        return getattr(owner, "__dict__", {}).get(self.name, ABSENT)

    def put(self, value: Any) -> None:
        """See ``Location.put``."""
        if value is ABSENT:
            delattr(self.owner(), self.name)
        else:
            setattr(self.owner(), self.name, value)


class Item(Location):
    """``owner[name]`` of a mapping."""

    def held(self) -> Any:
        """See ``Location.held``."""
        holder: MutableMapping[Any, Any] = self.owner()
        return holder.get(self.name, ABSENT)

    def put(self, value: Any) -> None:
        """See ``Location.put``."""
        if value is ABSENT:
            del self.owner()[self.name]
        else:
            self.owner()[self.name] = value


class Default(Location):
    """The default of parameter ``name`` in the function ``owner``."""

    def held(self) -> Any:
        """See ``Location.held``."""
        return default_of(self.owner(), self.name)

    def put(self, value: Any) -> None:
        """See ``Location.put``."""
        function = self.owner()
        # Assigned anew, never changed in place: CPython notices an assignment and drops what it cached.
        _as_found.setdefault(function, (function.__defaults__, function.__kwdefaults__))
        keyword_only = function.__kwdefaults__ or {}
        found, found_keywords = _as_found[function]
        if self.name in keyword_only:
            changed = {**keyword_only, self.name: value}
            function.__kwdefaults__ = found_keywords if _same_items(changed, found_keywords) else changed
        else:
            index = _positional_default(function, self.name)
            defaults = list(function.__defaults__ or ())
            if index is None:
                return
            defaults[index] = value
            unchanged = found and len(found) == len(defaults) and all(map(_is, found, defaults))
            function.__defaults__ = found if unchanged else tuple(defaults)
        if function.__defaults__ is found and function.__kwdefaults__ is found_keywords:
            del _as_found[function]


# The defaults of a function before its first change: the very tuple and dictionary are put back.
_as_found: weakref.WeakKeyDictionary[FunctionType, Any] = weakref.WeakKeyDictionary()


def chain(function: Any) -> Iterator[Any]:
    """``function`` and what it wraps, outermost first.

    The walk ends after a while: there are objects that answer for every name, with a new object each time.
    """
    for _ in range(100):
        if function is None:
            return
        yield function
        function = getattr(function, "__wrapped__", None)


def innermost(function: Any) -> FunctionType:
    """The function under all decorators that say what they wrap (``__wrapped__``).

    Raises:
        TypeError: the innermost callable is no Python function.
    """
    *_, inner = chain(function)
    inner = getattr(inner, "__func__", inner)
    if not isinstance(inner, FunctionType):
        raise TypeError(f"{inner!r} is not a Python function")
    return inner


def default_of(function: FunctionType, name: str) -> Any:
    """The default of parameter ``name``, or ``ABSENT``."""
    keyword_only = function.__kwdefaults__ or {}
    if name in keyword_only:
        return keyword_only[name]
    index = _positional_default(function, name)
    return ABSENT if index is None else (function.__defaults__ or ())[index]


def path(owner: Any, name: str) -> str:
    """``owner.name`` in words."""
    if not isinstance(owner, (ModuleType, type, FunctionType)):
        owner = type(owner)  # the repr of a run's object can be pages long
    module = getattr(owner, "__module__", None)
    own = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", repr(owner))
    return f"{module}.{own}.{name}" if module else f"{own}.{name}"


def _positional_default(function: FunctionType, name: str) -> int | None:
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    with_default = names[len(names) - len(defaults) :]
    return with_default.index(name) if name in with_default else None


def _is(one: Any, other: Any) -> bool:
    return one is other


def _same_items(one: dict[str, Any], other: dict[str, Any] | None) -> bool:
    return other is not None and one.keys() == other.keys() and all(one[key] is other[key] for key in one)


def _reference(owner: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(owner)
    except TypeError:  # takes no weak reference: a dict
        return lambda: owner
