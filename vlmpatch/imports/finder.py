"""When does a target exist?  Post-import hooks, already-imported modules, remote code.

A ``Hooks`` object is a meta path finder. For a watched name it lets the other finders find the module
and wraps the loader, so that the callbacks run once the module's code has run and before anybody else
sees it. Modules that reached ``sys.modules`` by another way (imported before us, half-initialised
while we were imported, put there by hand) are noticed at the next import of anything. The classes
here follow the finder and loader protocols without inheriting them: importlib.abc is slow to import.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase as _matches
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from vlmpatch.support.locks import Lock

Callback = Callable[[ModuleType], None]


class Hooks:
    """Calls back once per execution of a watched module.

    Args:
        on_error: called with the module's name and the exception of a callback. Nothing a callback
            raises may reach the import that triggered it, unless ``on_error`` itself raises.
        on_run: called with a watched module that has run its code, before anybody else.
    """

    def __init__(
        self, on_error: Callable[[str, Exception], None], on_run: Callback = lambda module: None
    ) -> None:
        self._on_error = on_error
        self._on_run = on_run
        self._callbacks: dict[str, list[Callback]] = {}
        self._early: dict[str, list[Callback]] = {}  # called before the code runs
        self._patterns: list[tuple[str, Callback]] = []
        self._heads: tuple[str, ...] = ()  # how what the patterns match begins
        self._counted = 0  # how many modules there were at the last look at the new ones
        self._running: set[str] = set()  # watched modules seen while others import them
        self._ours: set[str] = set()  # watched modules that run their code through us just now
        # Callbacks that have not been called for the module as it is now; usually not yet imported.
        self._waiting: dict[str, list[Callback]] = {}
        self._lock = Lock()
        # Names this thread is asking the other finders about. Another Hooks among them (a second copy
        # of vlmpatch) asks everybody too, us included.
        self._asking = threading.local()

    def install(self) -> None:
        """Go first among the finders: what is found before us would pass unseen."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Watch nothing any more."""
        with self._lock:
            self._callbacks.clear()
            self._early.clear()
            self._patterns.clear()
            self._waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def watch(self, target: str, callback: Callback) -> None:
        """Call ``callback(module)`` after each execution of ``target``, at once if it is imported.

        Args:
            target: a module's full name, or a pattern whose ``*`` stands for any run of characters
                (``transformers_modules.*.modeling_x``).
            callback: gets the module as ``sys.modules`` holds it.
        """
        with self._lock:
            if "*" in target:
                self._patterns.append((target, callback))
                self._heads = tuple({*self._heads, target.partition("*")[0]})
            else:
                self._callbacks.setdefault(target, []).append(callback)
                self._waiting.setdefault(target, []).append(callback)
        if "*" in target:
            for module in self.present(target):
                self._call(module.__name__, [callback])
        else:
            self._notice(target)

    def watch_before(self, target: str, callback: Callback) -> None:
        """Call ``callback(module)`` before each execution of ``target``, whose module is still empty.

        Args:
            target: a module's full name.
            callback: gets the module as ``sys.modules`` holds it.
        """
        with self._lock:
            self._early.setdefault(target, []).append(callback)
            self._callbacks.setdefault(target, [])

    def present(self, target: str) -> list[ModuleType]:
        """The modules ``target`` names that have run their code."""
        names = [target]
        if "*" in target:
            alike = target.partition("*")[0]  # of the thousands there are, few are worth the match
            names = [each for each in list(sys.modules) if each.startswith(alike) and _matches(each, target)]
        return [module for name in names if (module := sys.modules.get(name)) is not None and _ready(module)]

    def execute(self, loader: Any, module: ModuleType) -> None:
        """Run the code of ``module`` (again), between those who want to be there first and the others."""
        name = module.__name__
        with self._lock:
            callbacks = list(self._early.get(name, ()))
        self._call(name, callbacks, owed=False)
        self._ours.add(name)
        try:
            loader.exec_module(module)
        finally:
            self._ours.discard(name)
        self.executed(name)

    def executed(self, name: str) -> None:
        """Module ``name`` has just run its code (again): call everyone who watches it."""
        with self._lock:
            self._waiting.pop(name, None)
            callbacks = list(self._callbacks.get(name, ()))
            callbacks += [callback for pattern, callback in self._patterns if _matches(name, pattern)]
        self._call(name, [self._on_run, *callbacks])

    def sweep(self) -> None:
        """Notice watched modules that are fully imported without having passed through us."""
        for name in tuple(self._waiting):
            self._notice(name)

    def _look_at_new(self) -> None:
        """Note which watched modules came since the last look: it costs nothing that grows."""
        count = len(sys.modules)
        fresh, self._counted = count - self._counted, count
        try:
            # A dict keeps the order of insertion, so the new ones are its last. Where as many have gone
            # as come, one may be missed here; status() and every target's import look at all of them.
            for name in itertools.islice(reversed(sys.modules), max(fresh, 0)):
                if name in self._waiting:
                    self._running.add(name)
        except RuntimeError:  # another thread is importing too
            self._running.update(self._waiting)

    def _notice_running(self) -> None:
        for name in tuple(self._running):
            if name in self._waiting and name not in self._ours:
                self._notice(name)
            else:
                self._running.discard(name)

    def _notice(self, name: str) -> None:
        module = sys.modules.get(name)
        if module is not None and _ready(module):
            with self._lock:
                callbacks = self._waiting.pop(name, [])
            self._call(name, callbacks)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The import system's question; see ``importlib.abc.MetaPathFinder``."""
        # Asked of thousands of names that are nothing to us: no call and no object that can be spared.
        modules = sys.modules
        count = len(modules)
        if count != self._counted:
            try:
                newest = next(reversed(modules))
            except RuntimeError:  # another thread is importing too
                newest = None
            if count == self._counted + 1 and newest is not None and newest not in self._waiting:
                self._counted = count  # most often: one came, and it is nothing to us
            else:
                self._look_at_new()
        if self._running:
            self._notice_running()
        near = fullname in self._callbacks or fullname.startswith(self._heads)
        if not near or not self._wanted(fullname):
            return None
        asking: set[str] = self._asking.__dict__.setdefault("names", set())
        if fullname in asking:
            return None
        asking.add(fullname)
        try:
            spec = self._found_by_others(fullname, path, target)
        finally:
            asking.discard(fullname)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _NotifyingLoader(spec.loader, self)  # type: ignore[assignment]
        return spec

    def _wanted(self, name: str) -> bool:
        return name in self._callbacks or any(_matches(name, pattern) for pattern, _ in self._patterns)

    def _found_by_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec
        return None

    def _call(self, name: str, callbacks: list[Callback], owed: bool = True) -> None:
        # Read again: a lazy package replaces its own entry while it is being imported.
        module = sys.modules.get(name)
        if not isinstance(module, ModuleType):
            return  # what a program put there by hand is no module to patch
        for index, callback in enumerate(callbacks):
            try:
                callback(module)
            except Exception as error:
                self._on_error(name, error)
            except BaseException:  # Ctrl-C: this one is over, the others are owed their call
                if owed and name in self._callbacks:
                    self._waiting.setdefault(name, []).extend(callbacks[index + 1 :])
                raise


class _NotifyingLoader:
    """Stands in for a module's loader until its code has run, then is gone from the module."""

    def __init__(self, loader: Any, hooks: Hooks) -> None:
        self._loader = loader
        self._hooks = hooks

    def __getattr__(self, name: str) -> object:
        # A caller of importlib.util.find_spec who wants resources or source gets the real loader's answer.
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        if not _postpones(self._loader):
            self._hooks.execute(self._loader, module)
            return
        self._loader.exec_module(module)
        # importlib.util.LazyLoader: nothing has run yet. The first to touch the module runs the loader that
        # its spec names then.
        spec = _quietly(module, "__spec__")
        spec.loader = _NotifyingLoader(spec.loader, self._hooks)


def _ready(module: ModuleType) -> bool:
    """Whether the code of ``module`` has run; asked without touching it, for there are lazy ones."""
    # A module being imported is in sys.modules already; the import system marks its spec.
    return not _lazy(module) and not _quietly(_quietly(module, "__spec__"), "_initializing")


def _postpones(loader: Any) -> bool:
    # Not by the module's class: from Python 3.12 on it stays lazy until its code has run.
    lazy = getattr(sys.modules.get("importlib.util"), "LazyLoader", None)
    return lazy is not None and isinstance(loader, lazy)


def _lazy(module: ModuleType) -> bool:
    return type(module) is getattr(sys.modules.get("importlib.util"), "_LazyModule", None)


def _quietly(thing: Any, name: str) -> Any:
    try:
        return object.__getattribute__(thing, name)
    except Exception:  # a property of a lazy object's class can fail in any way
        return None
