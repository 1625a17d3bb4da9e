"""What was changed, by whom, in which order.

The journal is the only thing that writes to foreign objects, and the only thing that undoes. A change
on which another library has built since is not torn out from under them: ours is switched off in place
and the remark says so. Every change can be taken off for a while and put on again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, MutableMapping
from types import FunctionType, ModuleType
from typing import Any

from vlmpatch.journal import inherited
from vlmpatch.journal.changes import Change, Hook, Hooked, SetValue, Wrap
from vlmpatch.journal.locations import (
    ABSENT,
    Attribute,
    Default,
    Item,
    Location,
    chain,
    default_of,
    innermost,
    path,
)
from vlmpatch.journal.overrides import Override, OverrideStack
from vlmpatch.journal.wrappers import Foreign, Wrapper, WrapperChain, WrongSignature, carried, chain_of
from vlmpatch.support.locks import Lock

__all__ = ["ABSENT", "AlreadyPatched", "Foreign", "Journal", "Taken", "WrongSignature", "default_of"]


class AlreadyPatched(Exception):
    """The target carries this patch already, from another copy of vlmpatch in this process."""


class Taken(Exception):
    """Patches of two sets want one place to hold different things; the text names both."""


class Record:
    """A change, whose it is, and what it is in words."""

    def __init__(self, patch: str, what: str, change: Change) -> None:
        self.patch, self.what, self.change = patch, what, change
        self.on = True

    def take_off(self) -> str | None:
        """Take it back; returns a remark where another library has built on it."""
        if not self.on:
            return None
        alone = self.change.off()
        self.on = False  # last: what is interrupted here is done again
        if alone:
            return None
        state = "switched off in place" if isinstance(self.change, Wrap) else "left"
        return f"{self.what}: {state}, another library changed it since"


class Journal:
    """Changes in the order they were made.

    ``lock`` is held through every change; who decides by something that others change holds it too.
    """

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._overrides = OverrideStack()
        self.lock = Lock()
        # By patch and place: a model has tens of thousands of modules, each of which may be hooked.
        self._hooks: dict[tuple[str, int, int], list[tuple[Record, Hooked]]] = {}
        self._sets: set[str] = set()  # whose changes there were; nearly always ours alone
        self._kept = 64  # changes there were when those of dead objects were last forgotten

    def changes(self, patch: str) -> list[str]:
        """What ``patch`` has changed so far, in words."""
        return [record.what for record in self._records if record.patch == patch and record.on]

    def wrap(self, patch: str, owner: Any, name: str, wrapper: Wrapper) -> None:
        """Put ``wrapper(original, *args, **kwargs)`` around the function ``owner.name``.

        What lies there is a plain function with the original's name and signature, so that it pickles by
        name, binds as a method and passes identity checks on ``__func__``. It lies under the
        function's other names as well; see ``aliases``. Of a method that a class inherits it lies where
        that is defined; see ``inherited``. To wrap the same function in the same wrapper once more
        changes nothing.

        Raises:
            AttributeError: ``owner`` has no such attribute.
            Foreign: it is no function, or one that does not bind as a method.
            AlreadyPatched: it carries a wrapper of this patch from another copy of vlmpatch.
            WrongSignature: the wrapper does not take every call that the function takes.
        """
        key: tuple[Any, ...] = (patch, getattr(wrapper, "__code__", wrapper))
        what = f"wrapped {path(owner, name)}"
        with self.lock:
            asked, home = wrapper, inherited.home(owner, name)
            if home is not None:
                key, wrapper = (*key, id(owner)), inherited.for_calls_on(owner, wrapper)
                owner = home
            location = Attribute(owner, name)
            held = location.held()
            if carried(held, patch, self):
                raise AlreadyPatched(f"{what}: another copy of vlmpatch did so already")
            wrappers = self._lying(location, key)
            if wrappers is None and self._copied(patch, location, held, key):
                return
            if wrappers is not None and wrappers.acts(key):
                return
            wrappers = wrappers or WrapperChain(self, owner, name)
            wrappers.takes_calls_through(asked)
            self._do(Record(patch, what, Wrap(self._overrides, wrappers, key, wrapper)))

    def _lying(self, location: Location, key: Any) -> WrapperChain | None:
        """Our wrappers on ``location``: there, or under another library's when ``key`` is among them."""
        held = location.held()
        for candidate in chain(held):
            wrappers = chain_of(candidate, self)
            if wrappers is not None and wrappers.lies_at(location):
                return wrappers if wrappers.value.value is held or wrappers.link(key) else None
        return None

    def _copied(self, patch: str, location: Location, held: Any, key: Any) -> bool:
        """Whether a class statement copied a function that has this wrapper: it acts there as well."""
        wrappers = chain_of(getattr(held, "__func__", held), self)
        if wrappers is None or not wrappers.acts(key):
            return False
        value = Override(location, held, patch)
        value.below = wrappers.found.raw
        self._do(
            Record(
                patch,
                f"found {path(location.owner(), location.name)} wrapped",
                SetValue(self._overrides, value),
            )
        )
        return True

    def replace(self, patch: str, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name`` to ``value``; the attribute may be new.

        An ``owner`` that lives only as long as a run (a trainer, its arguments) is not kept alive.

        Raises:
            AlreadyPatched: the same function lies there, from another copy of vlmpatch.
        """
        what, location = f"set {path(owner, name)}", Attribute(owner, name)
        with self.lock:
            shared = isinstance(owner, (ModuleType, type))  # what is else may be a copy of what we had
            if shared and _same_function(held := location.held(), value) and not self._put_here(held):
                raise AlreadyPatched(f"{what}: another copy of vlmpatch did so already")
            self._put(patch, Override(location, value, patch), what)

    @contextlib.contextmanager
    def swapped(self, patch: str, owner: Any, name: str, value: Any) -> Iterator[None]:
        """``owner.name`` is ``value`` inside the block, and afterwards what it was before."""
        what = f"swapped {path(owner, name)}"
        record = self._put(patch, Override(Attribute(owner, name), value, None), what)
        try:
            yield
        finally:
            with self.lock:
                if self._forget(record):
                    record.take_off()

    def set_item(self, patch: str, mapping: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """``mapping[key] = value``: an environment variable, an entry of a registry."""
        self._put(patch, Override(Item(mapping, key), value, patch), f"set item {key!r}")

    def set_default(self, patch: str, function: Callable[..., Any], name: str, value: Any) -> None:
        """Change the default of parameter ``name`` in the innermost function under ``function``.

        Every holder of the function sees it, whatever decorators lie around it and wherever its
        reference was copied to, and a call costs nothing more.

        Raises:
            TypeError: the innermost callable is no Python function.
            ValueError: it has no such parameter with a default.
        """
        inner = innermost(function)
        before = default_of(inner, name)
        if before is ABSENT:
            raise ValueError(f"{inner.__qualname__} has no parameter {name!r} with a default")
        what = f"default {name}={value!r} of {inner.__module__}.{inner.__qualname__} (was {before!r})"
        self._put(patch, Override(Default(inner, name), value, patch), what)

    def hook(
        self, patch: str, register: Callable[..., Any], function: Callable[..., Any], **kwargs: Any
    ) -> None:
        """``register(function, **kwargs)``, whose handle has a ``remove()``: torch's module hooks.

        A model that is pickled goes without the hook. To register the same one again changes nothing.
        """
        hooked = Hooked(register, Hook(function), kwargs)
        with self.lock:
            key = (patch, *hooked.place)
            present = self._hooks.get(key, [])
            if not any(record.on and other.same(hooked) for record, other in present):
                record = Record(patch, f"hook {function.__qualname__}", hooked)
                self._hooks[key] = [*present, (record, hooked)]
                self._do(record)

    def rollback(self, patches: Collection[str]) -> list[str]:
        """Undo all changes of ``patches``, newest first across them; returns the remarks."""
        with self.lock:
            remarks = []
            for record in [record for record in reversed(self._records) if record.patch in patches]:
                remarks.append(record.take_off())
                self._forget(record)
            self._hooks = {key: there for key, there in self._hooks.items() if key[0] not in patches}
        return [remark for remark in remarks if remark]

    def ran_again(self, module: ModuleType) -> None:
        """``module`` has run its code: what that has overwritten is no change of ours any more."""
        with self.lock:
            gone = self._overrides.overwritten(module)
            gone += [value for value in self._switched_off(module) if not value.rests()]
            for record in [record for record in self._records if record.change.value in gone]:
                self._records.remove(record)
                if isinstance(record.change, Wrap):
                    record.change.overwritten()

    def _switched_off(self, owner: Any) -> list[Override]:
        """What lies at none of the locations of ``owner`` just now, and would again."""
        values = [value for record in self._records if (value := record.change.value) is not None]
        return [
            value
            for value in values
            if value.location.owner() is owner and not value.on and not self._overrides.covered(value)
        ]

    def dynamo_loaded(self) -> None:
        """See ``tracing``: there is now something that may begin to trace."""
        with self.lock:
            for record in self._records:
                if isinstance(record.change, Wrap):
                    record.change.trace_as_original()

    def suspend(self, patch: str) -> None:
        """Take the changes of ``patch`` off until ``resume``."""
        with self.lock:
            for record in reversed(self._records):
                if record.patch == patch:
                    record.take_off()

    def resume(self, patch: str) -> None:
        """Put the changes of ``patch`` on again, where their objects are as we left them."""
        with self.lock:
            for record in [record for record in self._records if record.patch == patch and not record.on]:
                record.on = True  # first: what is interrupted here can be taken off
                if not (record.change.alive and record.change.on()):
                    self._records.remove(record)

    def _put_here(self, held: Any) -> bool:
        """Whether ``held`` is a value of this journal."""
        values = (record.change.value for record in self._records)
        return any(value is not None and value.value is held for value in values)

    def _put(self, patch: str, value: Override, what: str) -> Record:
        with self.lock:
            self._hold_apart(patch, value, what)
            present = self._present(patch, value)
            if present is None:
                record = Record(patch, what, SetValue(self._overrides, value))
                self._do(record)
                return record
            record, former = present
            if former.value is not value.value:
                self._overrides.change(former, value.value)
                record.what = what
            return record

    def _hold_apart(self, patch: str, value: Override, what: str) -> None:
        """A value of one set never covers what a patch of another has put there, be it a value or a wrapper.

        Raises:
            Taken: it would.
        """
        mine = _set_of(patch)
        self._sets.add(mine)
        for record in self._records if len(self._sets) > 1 else ():
            former = record.change.value
            if former is None or not record.on or _set_of(record.patch) == mine:
                continue
            if former.location.same(value.location) and former.value is not value.value:
                raise Taken(f"{what}: {record.patch} has changed it, and only one of the two can act")

    def _present(self, patch: str, value: Override) -> tuple[Record, Override] | None:
        """What ``patch`` itself has put at the location of ``value`` before."""
        for record in reversed(self._records if value.tag else []):
            former = record.change.value if isinstance(record.change, SetValue) else None
            mine = former is not None and former.tag == patch and former.location.same(value.location)
            if mine and record.on and former is not None:
                there = former.location.holds(former.value) or self._overrides.covered(former)
                return (record, former) if there else None
        return None

    def _forget(self, record: Record) -> bool:
        """Take ``record`` out, the latest soonest; whether it was there."""
        for index in range(len(self._records) - 1, -1, -1):
            if self._records[index] is record:
                del self._records[index]
                return True
        return False

    def _do(self, record: Record) -> None:
        self._sets.add(_set_of(record.patch))
        # Recorded first: whatever interrupts what follows, it can be undone.
        self._records.append(record)
        try:
            record.change.on()
        except Exception as refused:  # of a class that lets nobody write to it, of an object that is frozen
            if record.change.value is None or record.change.value.on:
                raise
            self._forget(record)
            raise Foreign(f"{record.what}: {refused!r}") from refused
        if len(self._records) > 2 * self._kept:
            self._records = [record for record in self._records if record.change.alive]
            kept = set(map(id, self._records))
            hooks = (
                (key, [each for each in there if id(each[0]) in kept]) for key, there in self._hooks.items()
            )
            self._hooks = {key: there for key, there in hooks if there}
            self._overrides.prune()
            self._kept = max(64, len(self._records))


def _set_of(patch: str) -> str:
    """The patch set of others that ``patch`` is from; empty for ours."""
    return patch.rpartition("/")[0]


def _same_function(held: Any, value: Any) -> bool:
    """Whether ``held`` and ``value`` are one function of a patch file, made twice."""
    if held is value or type(held) is not FunctionType or type(value) is not FunctionType:
        return False
    file = _patch_file(value)
    return file != "" and (file, value.__qualname__) == (_patch_file(held), held.__qualname__)


def _patch_file(function: FunctionType) -> str:
    """Where among patches a function is defined, by whatever name its copy of vlmpatch was imported."""
    return str(function.__module__).partition("patches.")[2]
