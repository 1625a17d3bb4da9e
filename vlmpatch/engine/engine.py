"""The life of a patch: declared, armed, then applied, not needed, off, failed or in conflict."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING
from weakref import WeakSet

from vlmpatch.catalog import environment
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.model import WEIGHT, Catalog, Entry, Problem, State, Status
from vlmpatch.catalog.read import read
from vlmpatch.engine.switches import BY_ENVIRONMENT, UNDONE, Switches
from vlmpatch.imports.finder import Hooks
from vlmpatch.imports.remote_code import watch_remote_code
from vlmpatch.journal.journal import Journal
from vlmpatch.journal.tracing import DYNAMO
from vlmpatch.support import log
from vlmpatch.support.locks import Lock
from vlmpatch.watch.ranks import facts, watch_nodes

if TYPE_CHECKING:
    from vlmpatch.api import Patch


class PatchError(Exception):
    """A patch that was asked for by name is not available; the text says which and why."""


class Engine:
    """All patches of one process.

    Args:
        catalog: what is known.
        asked: what the environment asks for.
    """

    def __init__(self, catalog: Catalog, asked: environment.Settings) -> None:
        self.catalog = catalog
        self.asked = asked
        self.problems: list[Problem] = [*catalog.problems, *asked.problems]
        self.journal = Journal()
        self.hooks = Hooks(self._hook_failed, self.journal.ran_again)
        self._lock = Lock()
        self._outcomes: dict[str, dict[str, Status]] = {id_: {} for id_ in catalog.entries}
        self._switches = Switches()
        # Two copies of vlmpatch each need to be told.
        self._remote, self._nodes = (f"{what}-{id(self.hooks)}" for what in ("remote-code", "nodes"))
        self._handles: dict[str, Patch] = {}
        # The targets we were told of: of the latest, the import system may not yet say that it has run.
        self._told: dict[str, WeakSet[ModuleType]] = {id_: WeakSet() for id_ in catalog.entries}
        self._refusal: str | None = None  # what VLMPATCH_LOCK's file has otherwise; None: nobody has looked

    def arm(self) -> None:
        """Watch every target of every patch that is not switched off."""
        if self.asked.disable:
            self._switches.switch_off(self.asked.disable, BY_ENVIRONMENT)
            log.info(f"VLMPATCH_DISABLE switches off {', '.join(sorted(self.asked.disable))}")
        self.hooks.install()
        watch_remote_code(self.hooks, self.journal, self._remote, self._watch)
        watch_nodes(self.hooks, self.journal, self._nodes, self._watch, self._facts)
        self.hooks.watch(DYNAMO, lambda module: self.journal.dynamo_loaded())
        self._wait_for(self.catalog.entries.values())
        for problem in self.problems:
            log.warn(f"vlmpatch: {problem}")

    def _facts(self) -> dict[str, str]:
        return facts(self.catalog, self._off, self.asked.lock)

    def _wait_for(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            for target in entry.targets:
                wait = self.hooks.watch_before if entry.before else self.hooks.watch
                wait(target, functools.partial(self.on_target, entry))

    def use(self, names: Iterable[str]) -> None:
        """See ``vlmpatch.use``."""
        from vlmpatch.catalog import sets

        with self._lock:
            known = self.catalog
            made = sets.add(known, names, "vlmpatch.use")
            if problems := made.problems[len(known.problems) :]:
                raise PatchError("; ".join(map(str, problems)))
            new = {id_: entry for id_, entry in made.entries.items() if id_ not in known.entries}
            if conflicts := [reason for id_, reason in made.conflicts.items() if id_ in new]:
                raise PatchError("; ".join(conflicts))
            self._outcomes.update({id_: {} for id_ in new})
            self._told.update({id_: WeakSet() for id_ in new})
            off = environment.disabled(os.environ, made.entries, made.renamed) & new.keys()
            self._switches.switch_off(off, BY_ENVIRONMENT)
            self.catalog = made
        self._wait_for(new.values())  # not under the lock: those whose target is there are applied now

    def on_target(self, entry: Entry, module: ModuleType) -> None:
        """``module``, a target of ``entry``, has run its code: decide and apply, now or when it may be."""
        from vlmpatch.api import Patch  # not under the lock, see below

        if self.asked.lock:
            self._hold_against_lock()
        name, outcomes = module.__name__, self._outcomes
        while True:
            with self._lock:
                self._told[entry.id].add(module)
                if self._switches.reason(entry.id):
                    return
                if failed := self._failed_elsewhere(entry.id, name):
                    outcomes[entry.id][name] = failed
                    return
                flips = self._switches.flips[entry.id]
                handle = self._handles.setdefault(entry.id, Patch(entry.id, self.journal))
            # Not under the lock: a patch may import, and another thread may hold that module's import lock
            # while it waits for us.
            status = self._attempt(entry, module, handle)
            with self._lock:
                if self._handles.get(entry.id) is handle:  # else it was rolled back
                    outcomes[entry.id][name] = status
                    if self._switches.paused(entry.id):
                        self._take_off(entry.id)
                settled = flips == self._switches.flips[entry.id] and outcomes[entry.id].get(name) == status
            if settled:  # else it was off for a moment, and what was to be changed then was not
                self._tell(status)
                return

    def _hold_against_lock(self) -> None:
        """Once a process, with the first target: one that trains nothing has nothing to compare.

        Raises:
            PatchError: something is not as in the lock, and VLMPATCH_STRICT is set; with each target anew,
                for the host may go on without the first.
        """
        with self._lock:
            first = self._refusal is None
            self._refusal = self._refusal or ""
        if first:
            try:
                self._refusal = self._unlike(self.asked.lock)
            except Exception as error:
                self._refusal = f"{self.asked.lock} could not be compared: {error!r}"
            if self._refusal and not self.asked.strict:
                rest = "The run goes on; VLMPATCH_STRICT=1 refuses"
                log.warn(f"vlmpatch: VLMPATCH_LOCK: {self._refusal}. {rest}")
        if self._refusal and self.asked.strict:
            raise PatchError(f"VLMPATCH_LOCK: {self._refusal} (VLMPATCH_STRICT is set)")

    def _unlike(self, path: str) -> str:
        """What is not as in the lock at ``path``, in a sentence; nothing where all is."""
        from vlmpatch.engine import locked
        from vlmpatch.lockfile.lock import Unreadable

        try:
            found = locked.outlooks(self.catalog, self._unapplied())
            return locked.sentence(path, locked.differences(path, self.catalog, found))
        except Unreadable as error:
            return str(error)

    def _unapplied(self) -> list[str]:
        """The patches that nothing will be applied of, as far as this process knows."""
        out = (State.OFF, State.FAILED, State.CONFLICT)
        return [id_ for id_, status in self.status().items() if status.state in out]

    def _failed_elsewhere(self, id_: str, name: str) -> Status | None:
        """The failure of another target: a patch is there as a whole or not at all."""
        others = [status for other, status in self._outcomes[id_].items() if other != name]
        return next((status for status in others if status.state is State.FAILED), None)

    def _give_up(self, module: ModuleType, status: Status) -> Status:
        """Roll a patch back: a patch is there as a whole or not at all."""
        with self._lock:
            outcomes = self._outcomes[status.id]
            self._roll_back(status.id)
            applied = [name for name, other in outcomes.items() if other.state is State.APPLIED]
            outcomes.update(dict.fromkeys([*applied, module.__name__], status))
        return status

    def _attempt(self, entry: Entry, module: ModuleType, handle: Patch) -> Status:
        from vlmpatch.engine.apply import attempt

        if reason := self.catalog.conflicts.get(entry.id):
            return Status(entry.id, State.CONFLICT, f"{reason}; nothing was changed")
        try:
            status = attempt(entry, module, handle, self.catalog.modules)
        except Exception as error:
            status = self._give_up(module, _failure(entry, error))
            if self.asked.strict:
                raise PatchError(f"patch {entry.id} failed: {error!r} (VLMPATCH_STRICT is set)") from error
            return status
        except BaseException as interruption:  # the user's Ctrl-C, a program's sys.exit(): theirs to have
            self._give_up(module, _failure(entry, interruption))
            raise
        if status.state is State.CONFLICT and not handle.settled:
            return self._give_up(module, status)
        return status

    def _tell(self, status: Status) -> None:
        if status.state in (State.FAILED, State.CONFLICT):
            log.warn_once(status.id, status.state, f"{status.state.value}: {status.reason}")
        else:
            log.info(f"{status.id}: {status.state.value}: {status.reason}")

    def _hook_failed(self, target: str, error: Exception) -> None:
        if self.asked.strict:
            raise error
        log.warn(f"vlmpatch: the hook on {target} failed, which is a defect of vlmpatch: {error!r}")

    def status(self) -> dict[str, Status]:
        """Every patch's status; see ``vlmpatch.status``."""
        self.hooks.sweep()
        return {id_: self._status(entry) for id_, entry in self.catalog.entries.items()}

    def _status(self, entry: Entry) -> Status:
        from vlmpatch.engine.apply import forecast

        if reason := self._switches.reason(entry.id):
            return Status(entry.id, State.OFF, reason)
        if reason := self.catalog.conflicts.get(entry.id):
            return Status(entry.id, State.CONFLICT, f"{reason}; nothing was changed")
        seen = self._outcomes[entry.id].copy()
        unseen = [
            forecast(entry, each, seen, self.catalog.modules) for each in entry.targets if each not in seen
        ]
        return min([*seen.values(), *unseen], key=lambda status: WEIGHT.index(status.state))

    def require(self, ids: Iterable[str], lock: str | None = None) -> None:
        """See ``vlmpatch.require``."""
        if lock is not None and (unlike := self._unlike(lock)):
            raise PatchError(unlike)
        states = self.status()
        for id_ in self._known(ids):
            if states[id_].state in (State.OFF, State.FAILED, State.CONFLICT):
                raise PatchError(f"patch {id_} is {states[id_].state.value}: {states[id_].reason}")

    def undo(self, ids: Iterable[str]) -> list[str]:
        """See ``vlmpatch.undo``."""
        chosen = self._known(ids) or list(self.catalog.entries)
        with self._lock:
            self._switches.switch_off(chosen, UNDONE)
            remarks = self._roll_back(*chosen)
            self._watch()
        return remarks

    def redo(self, ids: Iterable[str]) -> None:
        """See ``vlmpatch.redo``."""
        chosen = self._known(ids) or list(self.catalog.entries)
        with self._lock:
            self._switches.redo(chosen)
        self._come_back(chosen)

    @contextlib.contextmanager
    def disabled(self, ids: Iterable[str]) -> Iterator[None]:
        """See ``vlmpatch.disabled``."""
        chosen = self._known(ids) or list(self.catalog.entries)
        block = object()
        try:
            with self._lock:
                self._switches.pause(block, chosen)
                for id_ in reversed(chosen):
                    self._take_off(id_)
                self._watch()
            yield
        finally:
            with self._lock:
                self._switches.unpause(block)
            self._come_back(chosen)

    def _take_off(self, id_: str) -> None:
        if handle := self._handles.get(id_):
            handle.active = False
        self.journal.suspend(id_)

    def _come_back(self, ids: list[str]) -> None:
        """What was changed is changed again, where nothing keeps it off any more."""
        with self._lock:
            back = [id_ for id_ in ids if not self._switches.reason(id_)]
            for id_ in back:
                if handle := self._handles.get(id_):
                    handle.active = True
                self.journal.resume(id_)
                seen = self._outcomes[id_]  # a failure is tried again
                self._outcomes[id_] = {n: each for n, each in seen.items() if each.state is not State.FAILED}
            told = {id_: list(self._told[id_]) for id_ in back}
            self._watch()
        for id_ in back:
            entry = self.catalog.entries[id_]
            # In those that were there before there may be something new.
            present = [module for target in entry.targets for module in self.hooks.present(target)]
            latest = [module for module in told[id_] if sys.modules.get(module.__name__) is module]
            for module in dict.fromkeys([*present, *latest]):
                self.on_target(entry, module)

    def _watch(self) -> None:
        switch = (
            self.journal.suspend if len(self._off()) == len(self.catalog.entries) else self.journal.resume
        )
        for own in (self._remote, self._nodes):
            switch(own)

    def _off(self) -> list[str]:
        return [id_ for id_ in self.catalog.entries if self._switches.reason(id_)]

    def _roll_back(self, *ids: str) -> list[str]:
        for id_ in ids:
            if handle := self._handles.pop(id_, None):
                handle.active = False
        return self.journal.rollback(ids)

    def _known(self, ids: Iterable[str]) -> list[str]:
        renamed = self.catalog.renamed
        asked = list(ids)
        for old in asked:
            if new := renamed.get(old):
                log.warn_once(new, old, f"{old!r} has become {new!r}. {environment.OUTDATED}")
        chosen = list(dict.fromkeys(renamed.get(id_, id_) for id_ in asked))
        for id_ in chosen:
            if id_ not in self.catalog.entries:
                hint = environment.suggestion(id_, self.catalog.entries)
                raise PatchError(f"{id_!r} is no patch id. {hint}`python -m vlmpatch list` prints them")
        return chosen


def _failure(entry: Entry, error: BaseException) -> Status:
    reason = f"{type(error).__name__}: {error}; rolled back. VLMPATCH_STRICT=1 shows the traceback"
    return Status(entry.id, State.FAILED, reason)


def make(environ: Mapping[str, str]) -> Engine:
    """An engine for the catalog that is installed and what ``environ`` asks for; ``arm`` sets it to work."""
    catalog = read(default_path())
    if named := environment.sets(environ):
        from vlmpatch.catalog import sets  # importlib.metadata is slow to import

        catalog = sets.add(catalog, named, "VLMPATCH_SETS")
    asked = environment.read(environ, catalog.entries, catalog.renamed)
    log.configure(asked.log)
    return Engine(catalog, asked)
