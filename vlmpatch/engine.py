"""The life of a patch: declared, armed, then applied, not needed, off, failed or in conflict."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from types import ModuleType
from typing import TYPE_CHECKING

from vlmpatch import report, settings
from vlmpatch.catalog import Catalog, Entry, Problem, State, Status, default_path, read
from vlmpatch.hooks import Hooks
from vlmpatch.journal import AlreadyPatched, Journal
from vlmpatch.remote_code import watch_remote_code

if TYPE_CHECKING:
    from vlmpatch.api import Patch

# Of the outcomes of a patch's several targets, the one that says most about the patch.
WEIGHT = (State.FAILED, State.CONFLICT, State.OFF, State.APPLIED, State.ARMED, State.NOT_NEEDED)


class PatchError(Exception):
    """A patch that was asked for by name is not to be had; the text says which and why."""


class Engine:
    """All patches of one process.

    Args:
        catalog: what is known.
        asked: what the environment asks for.
    """

    def __init__(self, catalog: Catalog, asked: settings.Settings) -> None:
        self.catalog = catalog
        self.asked = asked
        self.problems: list[Problem] = [*catalog.problems, *asked.problems]
        self.journal = Journal()
        self.hooks = Hooks(self._hook_failed)
        self._lock = threading.RLock()
        self._outcomes: dict[str, dict[str, Status]] = {id_: {} for id_ in catalog.entries}
        self._off: dict[str, str] = {}
        self._handles: dict[str, Patch] = {}

    def arm(self) -> None:
        """Watch every target of every patch that is not switched off."""
        for id_ in self.asked.disable:
            self._off[id_] = "VLMPATCH_DISABLE names it"
        self.hooks.install()
        watch_remote_code(self.hooks, self.journal)
        for entry in self.catalog.entries.values():
            for target in entry.targets:
                self.hooks.watch(target, functools.partial(self.on_target, entry))
        for problem in self.problems:
            report.warn(f"vlmpatch: {problem}")

    def on_target(self, entry: Entry, module: ModuleType) -> None:
        """``module``, a target of ``entry``, has just run its code: decide and apply."""
        if entry.id in self._off:
            return
        # Not under the lock: a patch may import, and another thread may hold that module's import lock
        # while it waits for us.
        status = self._attempt(entry, module)
        with self._lock:
            if entry.id in self._off:
                self._take_back([entry.id])
                return
            self._outcomes[entry.id][module.__name__] = status
        self._tell(status)

    def _attempt(self, entry: Entry, module: ModuleType) -> Status:
        from vlmpatch import gate
        from vlmpatch.code import Unrecognised, of_module

        try:
            verdict = gate.by_version(entry, self.catalog.modules)
            if not verdict.needed:
                return Status(entry.id, State.NOT_NEEDED, verdict.reason)
            patch_file = load(entry)
            looked = gate.by_code(patch_file, of_module(module))
            if not looked.needed:
                return Status(entry.id, State.NOT_NEEDED, looked.reason)
            patch_file.apply(self._handle(entry.id), module)
        except Unrecognised as difference:
            return Status(entry.id, State.CONFLICT, f"{difference}; nothing was changed")
        except AlreadyPatched as layer:
            self._take_back([entry.id])
            return Status(entry.id, State.CONFLICT, f"{layer}, from another copy of vlmpatch")
        except Exception as error:
            return self._failed(entry, error)
        changes = "; ".join(self.journal.changes(entry.id))
        return Status(entry.id, State.APPLIED, f"{verdict.reason}: {changes}")

    def _failed(self, entry: Entry, error: Exception) -> Status:
        self._take_back([entry.id])
        if self.asked.strict:
            raise PatchError(f"patch {entry.id} failed: {error!r} (VLMPATCH_STRICT is set)") from error
        reason = f"{type(error).__name__}: {error}; rolled back. VLMPATCH_STRICT=1 shows the traceback"
        return Status(entry.id, State.FAILED, reason)

    def _handle(self, id_: str) -> Patch:
        from vlmpatch.api import Patch

        handle = self._handles.get(id_)
        if handle is None:
            handle = self._handles[id_] = Patch(id_, self.journal)
        return handle

    def _tell(self, status: Status) -> None:
        if status.state in (State.FAILED, State.CONFLICT):
            report.warn_once(status.id, status.state, f"{status.state.value}: {status.reason}")
        else:
            report.info(f"{status.id}: {status.state.value}: {status.reason}")

    def _hook_failed(self, target: str, error: Exception) -> None:
        if self.asked.strict:
            raise error
        report.warn(f"vlmpatch: the hook on {target} failed, which is a defect of vlmpatch: {error!r}")

    def status(self) -> dict[str, Status]:
        """Every patch's status; see ``vlmpatch.status``."""
        self.hooks.sweep()
        with self._lock:
            return {id_: self._status(entry) for id_, entry in self.catalog.entries.items()}

    def _status(self, entry: Entry) -> Status:
        if entry.id in self._off:
            return Status(entry.id, State.OFF, self._off[entry.id])
        outcomes = self._outcomes[entry.id]
        unseen = [self._outlook(entry, target) for target in entry.targets if target not in outcomes]
        return min([*outcomes.values(), *unseen], key=lambda status: WEIGHT.index(status.state))

    def _outlook(self, entry: Entry, target: str) -> Status:
        from vlmpatch import gate

        if "*" in target and any(fnmatchcase(name, target) for name in self._outcomes[entry.id]):
            return Status(entry.id, State.NOT_NEEDED, f"modules of {target} have been seen")
        try:
            verdict = gate.by_version(entry, self.catalog.modules)
        except ValueError as broken_range:
            return Status(entry.id, State.FAILED, str(broken_range))
        if not verdict.needed:
            return Status(entry.id, State.NOT_NEEDED, verdict.reason)
        return Status(entry.id, State.ARMED, f"{verdict.reason}; waits for the import of {target}")

    def require(self, ids: Iterable[str]) -> None:
        """See ``vlmpatch.require``."""
        states = self.status()
        for id_ in self._known(ids):
            if states[id_].state in (State.OFF, State.FAILED, State.CONFLICT):
                raise PatchError(f"patch {id_} is {states[id_].state.value}: {states[id_].reason}")

    def undo(self, ids: Iterable[str]) -> list[str]:
        """See ``vlmpatch.undo``."""
        return self._switch_off(self._known(ids) or list(self.catalog.entries), "undone by vlmpatch.undo()")

    @contextlib.contextmanager
    def disabled(self, ids: Iterable[str]) -> Iterator[None]:
        """See ``vlmpatch.disabled``."""
        chosen = [id_ for id_ in self._known(ids) or self.catalog.entries if id_ not in self._off]
        self._switch_off(chosen, "inside vlmpatch.disabled()")
        try:
            yield
        finally:
            self._switch_on(chosen)

    def _switch_off(self, ids: list[str], reason: str) -> list[str]:
        with self._lock:
            for id_ in ids:
                self._off.setdefault(id_, reason)
            return self._take_back(ids)

    def _take_back(self, ids: list[str]) -> list[str]:
        for id_ in ids:
            if handle := self._handles.pop(id_, None):
                handle.active = False
        return self.journal.rollback(ids)

    def _switch_on(self, ids: Iterable[str]) -> None:
        for id_ in ids:
            entry = self.catalog.entries[id_]
            with self._lock:
                self._off.pop(id_, None)
                seen = {*self._outcomes[id_], *entry.targets}
                self._outcomes[id_].clear()
            for name in seen:
                # Targets imported inside the block were passed by; those seen before come again.
                if (module := sys.modules.get(name)) is not None:
                    self.on_target(entry, module)

    def _known(self, ids: Iterable[str]) -> list[str]:
        chosen = list(ids)
        for id_ in chosen:
            if id_ not in self.catalog.entries:
                hint = settings.suggestion(id_, self.catalog.entries)
                raise PatchError(f"{id_!r} is no patch id. {hint}`python -m vlmpatch list` prints them")
        return chosen


def load(entry: Entry) -> ModuleType:
    """The patch file of ``entry``, imported."""
    return importlib.import_module(f"vlmpatch.patches.{entry.module}")


def start(environ: Mapping[str, str]) -> Engine:
    """Read the catalog and the environment and arm everything; called once, by ``import vlmpatch``."""
    catalog = read(default_path())
    asked = settings.read(environ, catalog.entries)
    report.configure(asked.log)
    engine = Engine(catalog, asked)
    engine.arm()
    return engine
