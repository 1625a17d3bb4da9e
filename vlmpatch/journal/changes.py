"""What can be done to a foreign object, taken back, and done again: a value, a wrapper, a hook."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any, Protocol

from vlmpatch.journal.locations import chain
from vlmpatch.journal.overrides import Override, OverrideStack
from vlmpatch.journal.wrappers import Foreign, Wrapper, WrapperChain, chain_of, standing


class Change(Protocol):
    """One thing done to a foreign object."""

    def on(self) -> bool:
        """Do it, or do it again; False when the object is not what we left any more."""

    def off(self) -> bool:
        """Take it back; False when another library has built on it."""

    @property
    def alive(self) -> bool:
        """Whether the object still is."""

    @property
    def value(self) -> Override | None:
        """What lies at a location because of it."""


class SetValue:
    """A value put somewhere."""

    def __init__(self, overrides: OverrideStack, value: Override) -> None:
        self._overrides = overrides
        self._value = value

    @property
    def value(self) -> Override:
        """See ``Change.value``."""
        return self._value

    @property
    def alive(self) -> bool:
        """See ``Change.alive``."""
        return self.value.location.alive

    def on(self) -> bool:
        """See ``Change.on``."""
        value = self.value
        if self._overrides.covered(value) or value.location.holds(value.below):
            self._overrides.put(value)
        elif value.location.holds(value.value):
            self._overrides.adopt(value)
        else:
            return False
        return True

    def off(self) -> bool:
        """See ``Change.off``."""
        return _take(self._overrides, self.value)


class Wrap:
    """A wrapper among the wrappers on one attribute."""

    def __init__(self, overrides: OverrideStack, wrappers: WrapperChain, key: Any, wrapper: Wrapper) -> None:
        self._overrides, self._wrappers, self._key, self._wrapper = overrides, wrappers, key, wrapper

    @property
    def value(self) -> Override:
        """See ``Change.value``."""
        return self._wrappers.value

    @property
    def alive(self) -> bool:
        """See ``Change.alive``."""
        return self._wrappers.value.location.alive

    def on(self) -> bool:
        """See ``Change.on``; an attribute that changed meanwhile is wrapped as it now is."""
        wrappers, value = self._wrappers, self._wrappers.value
        held = value.location.held()
        if not value.on and held is value.value:
            self._overrides.adopt(value)
        elif not value.on and not any(chain_of(each, wrappers.journal) is wrappers for each in chain(held)):
            if held is not value.below and not self._overrides.covered(value):
                try:
                    value.lie_on(held)
                except (AttributeError, Foreign):
                    return False
            self._overrides.put(value)
        wrappers.switch(self._key, self._wrapper, True)
        for alias in wrappers.new_aliases():
            former = [each for each in wrappers.aliases if not each.location.same(alias.location)]
            wrappers.aliases[:] = [*former, alias]
            self._overrides.put(alias)
        return True

    def off(self) -> bool:
        """See ``Change.off``."""
        wrappers, value = self._wrappers, self._wrappers.value
        wrappers.switch(self._key, self._wrapper, False)
        if wrappers.marks:
            return True
        alone = _take(self._overrides, value)
        return self.leave_aliases() and alone

    def leave_aliases(self) -> bool:
        """Put back what lay at the other locations; False when another library has built on one of ours."""
        wrappers = self._wrappers
        for alias in wrappers.aliases:
            if alias.below is not wrappers.value.below:
                alias.lie_on(wrappers.value.below)
            _take(self._overrides, alias)
        # One on which another library has built is taken away when that has gone, if it ever does.
        wrappers.aliases[:] = [alias for alias in wrappers.aliases if _lies(alias)]
        return not wrappers.aliases

    def trace_as_original(self) -> None:
        """See ``WrapperChain.trace_as_original``."""
        self._wrappers.trace_as_original()

    def overwritten(self) -> None:
        """What the wrappers lay on has run again: they lie nowhere any more."""
        self._wrappers.gone = True
        self.leave_aliases()


def _lies(value: Override) -> bool:
    held = value.location.held()
    return any(each is value.value for each in (held, *chain(held)))


def _take(overrides: OverrideStack, value: Override) -> bool:
    if not value.on and value.location.alive and value.location.held() is value.value:
        overrides.adopt(value)  # it was under another library's, which has gone
    value.below = standing(value.location, value.below)
    return overrides.take(value)


class Hook:
    """A function as a module's hook; it does nothing once it is off, in copies of the module as well.

    A pickled module must not need vlmpatch to load: there the hook becomes a method of the standard
    library that takes anything and does nothing. A process that is being spawned gets the hook itself.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self.on = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module calls."""
        return self._function(*args, **kwargs) if self.on else None

    def __deepcopy__(self, _memo: object) -> Hook:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        from contextlib import nullcontext

        context = sys.modules.get("multiprocessing.context")
        if context is not None and context.get_spawning_popen() is not None:
            return Hook, (self._function,)
        return getattr, (nullcontext(), "__exit__")


class Hooked:
    """A hook, registered.

    What it is registered with keeps it, and nothing here does: it may know a run's objects, the module that
    it hooks among them. While it is off it is kept here, to come back.
    """

    def __init__(self, register: Callable[..., Any], hook: Hook, options: dict[str, Any]) -> None:
        bound = isinstance(register, MethodType)
        self._register: Callable[[], Any] = weakref.WeakMethod(register) if bound else lambda: register
        self._hook: Callable[[], Hook | None] = lambda: hook
        self._options = options
        self._handle: Any = None
        self.value = None

    @property
    def alive(self) -> bool:
        """See ``Change.alive``."""
        return self._register() is not None

    @property
    def place(self) -> tuple[int, int]:
        """Equal for those that are the same; ids are given anew, so others may have it later."""
        register, hook = self._register(), self._hook()
        return id(getattr(register, "__self__", register)), id(getattr(hook, "__wrapped__", None))

    def same(self, other: Hooked) -> bool:
        """Whether both register one function with one object."""
        mine, others = (getattr(each._hook(), "__wrapped__", None) for each in (self, other))
        return mine is not None and mine is others and self._register() == other._register()

    def on(self) -> bool:
        """See ``Change.on``."""
        register, hook = self._register(), self._hook()
        if register is None or hook is None:
            return False
        self._handle = register(hook, **self._options)
        hook.on = True
        self._hook = weakref.ref(hook)
        return True

    def off(self) -> bool:
        """See ``Change.off``."""
        hook = self._hook()
        if hook is not None:
            hook.on = False
            self._hook = lambda: hook
        if self._handle is not None:
            self._handle.remove()
        return True
