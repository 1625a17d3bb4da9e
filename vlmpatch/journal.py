"""What was changed, by whom, in which order.

The journal is the only thing that writes to foreign objects, and the only thing that undoes. A change
on which somebody else has built since is not torn out from under them: ours is switched off in place
and the remark says so.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, MutableMapping
from types import ClassMethodDescriptorType, FunctionType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

ABSENT: Any = type("ABSENT", (), {"__repr__": lambda self: "absent"})()
MARK = "__vlmpatch__"


class AlreadyPatched(Exception):
    """The target carries this patch already, from another copy of vlmpatch in this process."""


class Change(NamedTuple):
    """One write: ``undo`` returns a remark when the old value could not be put back."""

    patch: str
    what: str
    undo: Callable[[], str | None]


class Journal:
    """Changes in the order they were made."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        # Each layer's switch: one that was undone under somebody else's layer can be switched on again.
        self._layers: WeakKeyDictionary[Callable[..., Any], list[bool]] = WeakKeyDictionary()
        self._lock = threading.RLock()

    def changes(self, patch: str) -> list[str]:
        """What ``patch`` has changed so far, in words."""
        return [change.what for change in self._changes if change.patch == patch]

    def wrap(self, patch: str, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Put ``wrapper(original, *args, **kwargs)`` around the function ``owner.name``.

        The layer is a plain function with the original's name and signature, so that it pickles by
        name, binds as a method and passes identity checks on ``__func__``.

        Raises:
            AttributeError: ``owner`` has no such attribute.
            TypeError: it is no function.
            AlreadyPatched: it carries a layer of this patch already.
        """
        original, kind = _original(owner, name)
        what = f"wrapped {_path(owner, name)}"
        if carries(original, patch):
            self._switch_on(patch, original, what)
            return
        layer, switch = _layer(patch, original, wrapper)
        self._layers[layer] = switch
        self._set(patch, owner, name, kind(layer) if kind else layer, what, switch)

    def replace(self, patch: str, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name`` to ``value``; the attribute may be new.

        An ``owner`` that lives only as long as a run (a trainer, its arguments) is not kept alive.
        """
        self._set(patch, owner, name, value, f"set {_path(owner, name)}", None)

    @contextlib.contextmanager
    def swapped(self, patch: str, owner: Any, name: str, value: Any) -> Iterator[None]:
        """``owner.name`` is ``value`` inside the block, and afterwards what it was before."""
        change = self._set(patch, owner, name, value, f"swapped {_path(owner, name)}", None)
        try:
            yield
        finally:
            if self._forget(change):
                change.undo()

    def set_item(self, patch: str, mapping: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """``mapping[key] = value``: an environment variable, an entry of a registry."""
        before = mapping.get(key, ABSENT)
        mapping[key] = value
        what = f"set item {key!r}"
        reference = _reference(mapping)

        def undo() -> str | None:
            holder = reference()
            if holder is None:
                return None
            if holder.get(key, ABSENT) != value:
                return f"{what}: left, somebody changed it since"
            if before is ABSENT:
                del holder[key]
            else:
                holder[key] = before
            return None

        self._record(Change(patch, what, undo))

    def set_default(self, patch: str, function: Callable[..., Any], name: str, value: Any) -> None:
        """Change the default of parameter ``name`` in the innermost function under ``function``.

        Every holder of the function sees it, whatever decorators lie around it and whoever copied the
        reference, and a call costs nothing more.

        Raises:
            TypeError: the innermost callable is no Python function.
            ValueError: it has no such parameter with a default.
        """
        inner = innermost(function)
        before = default_of(inner, name)
        if before is ABSENT:
            raise ValueError(f"{inner.__qualname__} has no parameter {name!r} with a default")
        _set_default(inner, name, value)
        what = f"default {name}={value!r} of {inner.__module__}.{inner.__qualname__} (was {before!r})"

        def undo() -> str | None:
            if default_of(inner, name) is not value:
                return f"{what}: left, somebody changed it since"
            _set_default(inner, name, before)
            return None

        self._record(Change(patch, what, undo))

    def hook(
        self, patch: str, register: Callable[..., Any], function: Callable[..., Any], **kwargs: Any
    ) -> None:
        """``register(function, **kwargs)``, whose handle has a ``remove()``: torch's module hooks."""
        handle = register(function, **kwargs)
        self._record(Change(patch, f"hook {function.__qualname__}", handle.remove))

    def rollback(self, patches: Collection[str]) -> list[str]:
        """Undo all changes of ``patches``, newest first across them; returns the remarks."""
        with self._lock:
            mine = [change for change in self._changes if change.patch in patches]
            self._changes = [change for change in self._changes if change.patch not in patches]
            remarks = [change.undo() for change in reversed(mine)]
        return [remark for remark in remarks if remark]

    def _set(
        self, patch: str, owner: Any, name: str, value: Any, what: str, switch: list[bool] | None
    ) -> Change:
        before = _held(owner, name)
        setattr(owner, name, value)
        reference = _reference(owner)

        def undo() -> str | None:
            if switch is not None:
                switch[0] = False
            holder = reference()
            if holder is None:
                return None
            if _held(holder, name) is not value:
                state = "switched off in place" if switch is not None else "left"
                return f"{what}: {state}, somebody patched on top of it"
            if before is ABSENT:
                delattr(holder, name)
            else:
                setattr(holder, name, before)
            return None

        change = Change(patch, what, undo)
        self._record(change)
        return change

    def _switch_on(self, patch: str, function: Any, what: str) -> None:
        for candidate in _chain(function):
            switch = self._layers.get(candidate)
            if switch is not None and not switch[0]:
                switch[0] = True
                self._record(Change(patch, what, functools.partial(switch.__setitem__, 0, False)))
                return
        raise AlreadyPatched(f"{what}: it carries the patch {patch} already")

    def _record(self, change: Change) -> None:
        with self._lock:
            self._changes.append(change)

    def _forget(self, change: Change) -> bool:
        """Strike ``change`` from the record; False when a rollback has done so meanwhile."""
        with self._lock:
            kept = [other for other in self._changes if other is not change]
            found = len(kept) < len(self._changes)
            self._changes = kept
            return found


def _layer(
    patch: str, original: Callable[..., Any], wrapper: Callable[..., Any]
) -> tuple[Callable[..., Any], list[bool]]:
    switch = [True]

    @functools.wraps(original)
    def layer(*args: Any, **kwargs: Any) -> Any:
        if switch[0]:
            return wrapper(original, *args, **kwargs)
        return original(*args, **kwargs)

    setattr(layer, MARK, patch)
    return layer, switch


def carries(function: Any, patch: str) -> bool:
    """Whether ``function`` or one it wraps was put there by ``patch``."""
    return any(getattr(candidate, MARK, None) == patch for candidate in _chain(function))


def _chain(function: Any) -> Iterator[Any]:
    """``function`` and what it wraps, outermost first; a cycle ends the walk."""
    seen: set[int] = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        yield function
        function = getattr(function, "__wrapped__", None)


def innermost(function: Any) -> FunctionType:
    """The function under all decorators that say what they wrap (``__wrapped__``)."""
    *_, function = _chain(function)
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        raise TypeError(f"{function!r} is not a Python function")
    return function


def default_of(function: FunctionType, name: str) -> Any:
    """The default of parameter ``name``, or ``ABSENT``."""
    keyword_only = function.__kwdefaults__ or {}
    if name in keyword_only:
        return keyword_only[name]
    index = _positional_default(function, name)
    return ABSENT if index is None else (function.__defaults__ or ())[index]


def _set_default(function: FunctionType, name: str, value: Any) -> None:
    # Assigned anew, never changed in place: CPython notices an assignment and drops what it cached.
    keyword_only = function.__kwdefaults__ or {}
    if name in keyword_only:
        function.__kwdefaults__ = {**keyword_only, name: value}
        return
    index = _positional_default(function, name)
    assert index is not None
    defaults = list(function.__defaults__ or ())
    defaults[index] = value
    function.__defaults__ = tuple(defaults)


def _positional_default(function: FunctionType, name: str) -> int | None:
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    with_default = names[len(names) - len(defaults) :]
    return with_default.index(name) if name in with_default else None


def _original(owner: Any, name: str) -> tuple[Callable[..., Any], type | None]:
    """The function behind ``owner.name`` and the descriptor type it is stored in, if any.

    What a class inherits is reached through ``super()`` at each call, as a method written into the
    class would do it: its parents, and other bases of its subclasses, stay in the chain.
    """
    holder = next((cls for cls in getattr(owner, "__mro__", ()) if name in vars(cls)), owner)
    raw = vars(holder)[name] if name in vars(holder) else getattr(owner, name)
    kind = next((kind for kind in (staticmethod, classmethod) if isinstance(raw, kind)), None)
    if isinstance(raw, ClassMethodDescriptorType):
        kind = classmethod
    original = getattr(raw, "__func__", raw)
    if not callable(original):
        raise TypeError(f"{_path(owner, name)} is {type(original).__name__}, not a function")
    if holder is owner or kind is staticmethod:
        return original, kind

    @functools.wraps(original)
    def inherited(bound: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(owner, bound), name)(*args, **kwargs)

    return inherited, kind


def _held(owner: Any, name: str) -> Any:
    """What ``owner`` itself holds as ``name``, in its namespace or behind a property, or ``ABSENT``."""
    if isinstance(getattr(type(owner), name, None), property):
        return getattr(owner, name)
    return getattr(owner, "__dict__", {}).get(name, ABSENT)


def _reference(owner: Any) -> Callable[[], Any]:
    """``owner``, held only where it lives as long as the process: a run's objects must be free to go."""
    if not isinstance(owner, (ModuleType, type)):
        with contextlib.suppress(TypeError):  # takes no weak reference
            return weakref.ref(owner)
    return lambda: owner


def _path(owner: Any, name: str) -> str:
    if not isinstance(owner, (ModuleType, type, FunctionType)):
        owner = type(owner)  # the repr of a run's object can be pages long
    module = getattr(owner, "__module__", None)
    own = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", repr(owner))
    return f"{module}.{own}.{name}" if module else f"{own}.{name}"
