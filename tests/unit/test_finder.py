from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import World
from tests.lab.waits import joined
from vlmpatch.imports.finder import Hooks


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    failures: list[tuple[str, Exception]] = []
    made = Hooks(lambda name, error: failures.append((name, error)))
    made.failures = failures  # type: ignore[attr-defined]
    made.install()
    yield made
    made.remove()


def test_called_after_the_import_and_before_anybody_sees_it(world: World, hooks: Hooks) -> None:
    world.package("target", "value = 1\n")
    world.package("user", "from target import value\n")
    hooks.watch("target", lambda module: setattr(module, "value", 2))
    assert importlib.import_module("user").value == 2


def test_called_at_once_when_imported_already(world: World, hooks: Hooks) -> None:
    world.package("target")
    importlib.import_module("target")
    seen: list[ModuleType] = []
    hooks.watch("target", seen.append)
    assert seen == [sys.modules["target"]]


def test_several_watchers_of_one_imported_module_are_called_once_each(world: World, hooks: Hooks) -> None:
    world.package("target")
    importlib.import_module("target")
    seen: list[str] = []
    hooks.watch("target", lambda module: seen.append("first"))
    hooks.watch("target", lambda module: seen.append("second"))
    assert seen == ["first", "second"]


def test_once_per_execution(world: World, hooks: Hooks) -> None:
    world.package("target")
    seen: list[ModuleType] = []
    hooks.watch("target", seen.append)
    module = importlib.import_module("target")
    importlib.import_module("target")
    assert len(seen) == 1
    importlib.reload(module)
    assert len(seen) == 2


def test_a_half_initialised_module_is_called_when_it_is_whole(world: World, hooks: Hooks) -> None:
    world.package("later", "")
    world.package("target", "import during\nvalue = 1\n")
    seen: list[int] = []
    world.package("during", "import builtins\nbuiltins.watch_now()\n")
    import builtins

    builtins.watch_now = lambda: hooks.watch("target", lambda m: seen.append(m.value))  # type: ignore[attr-defined]
    importlib.import_module("target")
    assert seen == []
    importlib.import_module("later")
    assert seen == [1]


def test_a_module_put_there_by_hand_is_noticed(world: World, hooks: Hooks) -> None:
    world.package("anything", "")
    seen: list[ModuleType] = []
    hooks.watch("handmade", seen.append)
    module = sys.modules["handmade"] = ModuleType("handmade")
    importlib.import_module("anything")
    assert seen == [module]


def test_a_lazy_package_is_given_as_it_ends_up(world: World, hooks: Hooks) -> None:
    lines = ("import sys, types", "m = types.ModuleType('lazy')", "m.real = True", "sys.modules['lazy'] = m")
    world.package("lazy", "\n".join(lines))
    seen: list[Any] = []
    hooks.watch("lazy", seen.append)
    importlib.import_module("lazy")
    assert [module.real for module in seen] == [True]


def fail(module: ModuleType) -> None:
    raise ZeroDivisionError


def test_a_failing_callback_never_reaches_the_import(world: World, hooks: Hooks) -> None:
    world.package("target")
    hooks.watch("target", fail)
    assert importlib.import_module("target").greet("you") == "hello you"
    ((name, error),) = hooks.failures  # type: ignore[attr-defined]
    assert name == "target"
    assert isinstance(error, ZeroDivisionError)


def test_a_failing_module_fails_as_without_us(world: World, hooks: Hooks) -> None:
    world.package("broken", "raise KeyError('mine')\n")
    seen: list[ModuleType] = []
    hooks.watch("broken", seen.append)
    with pytest.raises(KeyError, match="mine"):
        importlib.import_module("broken")
    assert seen == []
    assert "broken" not in sys.modules


def test_the_module_keeps_its_own_loader(world: World, hooks: Hooks) -> None:
    world.package("target")
    hooks.watch("target", lambda module: None)
    spec = importlib.util.find_spec("target")
    assert spec is not None
    assert spec.loader is not None
    assert "def greet" in spec.loader.get_source("target")  # type: ignore[attr-defined]
    module = importlib.import_module("target")
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__


def test_an_absent_module_stays_absent(hooks: Hooks) -> None:
    hooks.watch("absent_module", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("absent_module")


def test_patterns(world: World, hooks: Hooks) -> None:
    package = world.folder / "remote_modules"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "modeling_x.py").write_text("")
    seen: list[str] = []
    hooks.watch("remote_modules.*", lambda module: seen.append(module.__name__))
    importlib.import_module("remote_modules.modeling_x")
    assert seen == ["remote_modules.modeling_x"]
    hooks.executed("remote_modules.modeling_x")
    assert len(seen) == 2


def test_many_threads_one_call(world: World, hooks: Hooks) -> None:
    world.package("target", "import time\ntime.sleep(0.05)\nvalue = 1\n")
    seen: list[ModuleType] = []
    hooks.watch("target", seen.append)
    values: list[int] = []
    work: Callable[[], None] = lambda: values.append(importlib.import_module("target").value)  # noqa: E731
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert joined(threads)
    assert values == [1] * 8
    assert len(seen) == 1


def test_watching_from_another_thread_while_it_is_imported(world: World, hooks: Hooks) -> None:
    world.package("later", "")
    world.package("slow", "import time\ntime.sleep(0.2)\nvalue = 1\n")
    importing = threading.Thread(target=importlib.import_module, args=("slow",))
    importing.start()
    seen: list[int] = []
    hooks.watch("slow", lambda module: seen.append(module.value))
    assert joined([importing])
    importlib.import_module("later")
    assert seen == [1]


def test_two_of_us_on_the_path(world: World, hooks: Hooks) -> None:
    other = Hooks(lambda name, error: None)
    other.install()
    try:
        world.package("target")
        seen: list[str] = []
        hooks.watch("target", lambda module: seen.append("first"))
        other.watch("target", lambda module: seen.append("second"))
        importlib.import_module("target")
        assert sorted(seen) == ["first", "second"]
    finally:
        other.remove()


class Touchy(ModuleType):
    """As py, six and others put into ``sys.modules``: touching it imports something, or fails."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"touched: {name}")


def test_a_lazy_object_that_raises_when_touched_stops_no_import(world: World, hooks: Hooks) -> None:
    world.package("anything", "")
    hooks.watch("touchy", lambda module: None)
    sys.modules["touchy"] = Touchy("touchy")
    importlib.import_module("anything")
    assert hooks.failures == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("by", ["its user", "a finder"])
def test_a_lazy_loader_stays_lazy(world: World, hooks: Hooks, by: str) -> None:
    world.package("target", "import builtins\nbuiltins.target_ran = True\nvalue = 1\n")
    world.package("anything", "")
    import builtins

    builtins.target_ran = False  # type: ignore[attr-defined]
    seen: list[int] = []
    hooks.watch("target", lambda module: seen.append(module.value))
    if by == "a finder":
        lazy = Lazy()
        sys.meta_path.insert(1, lazy)
        module = importlib.import_module("target")
        sys.meta_path.remove(lazy)
    else:
        spec = importlib.util.find_spec("target")
        assert spec is not None
        assert spec.loader is not None
        spec.loader = importlib.util.LazyLoader(spec.loader)
        module = sys.modules["target"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    importlib.import_module("anything")
    assert (seen, builtins.target_ran) == ([], False)  # type: ignore[attr-defined]
    assert module.value == 1
    assert seen == [1]


class Lazy:
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and name == "target" and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def test_called_before_the_code_runs_and_at_every_run(world: World, hooks: Hooks) -> None:
    world.package("target", "seen = given\n")
    numbers = itertools.count()
    hooks.watch_before("target", lambda module: setattr(module, "given", next(numbers)))
    module = importlib.import_module("target")
    assert module.seen == 0
    assert importlib.reload(module).seen == 1


def test_before_a_lazy_module_runs_and_not_sooner(world: World, hooks: Hooks) -> None:
    world.package("target", "seen = 1\n")
    called: list[str] = []
    hooks.watch_before("target", lambda module: called.append(module.__name__))
    spec = importlib.util.find_spec("target")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["target"] = module
    spec.loader.exec_module(module)
    assert called == []
    assert module.seen == 1
    assert called == ["target"]


def test_an_interruption_before_the_code_runs_leaves_nobody_owed(world: World, hooks: Hooks) -> None:
    world.package("target")
    seen: list[ModuleType] = []

    def interrupted(module: ModuleType) -> None:
        raise KeyboardInterrupt

    hooks.watch_before("target", interrupted)
    hooks.watch("target", seen.append)
    with pytest.raises(KeyboardInterrupt):
        importlib.import_module("target")
    assert "target" not in sys.modules
    assert seen == []


def test_a_pattern_finds_what_has_run_already_and_nothing_that_still_runs(
    world: World, hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, running = (ModuleType(f"remote_modules.{name}") for name in ("there", "running"))
    for module in (there, running):
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    setattr(running.__spec__, "_initializing", True)  # noqa: B010  (as the import system marks it)
    monkeypatch.setitem(sys.modules, "elsewhere.there", ModuleType("elsewhere.there"))
    monkeypatch.setitem(sys.modules, "remote_modules.blocked", None)
    seen: list[ModuleType] = []
    hooks.watch("remote_modules.*", seen.append)
    assert seen == [there]
    assert hooks.present("remote_modules.*") == [there]
    assert hooks.present("remote_modules.there") == [there]
    assert hooks.present("remote_modules.running") == []
    assert hooks.present("remote_modules.blocked") == hooks.present("remote_modules.absent") == []


def test_removed_it_watches_nothing_and_is_on_the_path_no_more(world: World, hooks: Hooks) -> None:
    world.package("target")
    seen: list[ModuleType] = []
    hooks.watch("target", seen.append)
    hooks.watch("targe*", seen.append)
    hooks.remove()
    assert hooks not in sys.meta_path
    importlib.import_module("target")
    hooks.sweep()
    hooks.executed("target")
    assert not seen
    hooks.remove()
    hooks.install()
    hooks.install()
    assert sys.meta_path.count(hooks) == 1


def test_a_name_without_a_pattern_is_left_to_the_others(world: World, hooks: Hooks) -> None:
    world.package("target")
    hooks.watch("targets.*", lambda module: None)
    hooks.watch("targets.inside", lambda module: None)
    for name in ("target", "targets", "other.inside"):
        assert hooks.find_spec(name, None) is None
