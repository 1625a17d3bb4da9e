from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import sys
import threading
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import PATCH, World
from tests.lab.waits import LONG, joined
from vlmpatch import PatchError
from vlmpatch.catalog.model import State
from vlmpatch.engine.engine import Engine
from vlmpatch.support import log
from vlmpatch_lab.patience import within

NEEDS = '{ fakelib = ">=1,<2.dev0" }'


def patched(world: World, version: str = "1.5", source: str = PATCH, **keys: str) -> tuple[str, str]:
    """A package ``targetN`` with a patch for it; returns (patch id, package)."""
    world.distribution("fakelib", version)
    package = world.package(f"target{len(world.entries)}")
    return world.patch(package, NEEDS, source, **keys), package


def greeting(package: str) -> str:
    said: str = importlib.import_module(package).greet("you")
    return said


def test_armed_then_applied(world: World) -> None:
    id_, package = patched(world)
    engine = world.engine()
    status = engine.status()[id_]
    assert status.state is State.ARMED
    assert f"waits for the import of {package}" in status.reason
    assert greeting(package) == "goodbye you"
    assert engine.status()[id_] == (id_, State.APPLIED, f"fakelib 1.5: wrapped {package}.greet")


def test_applied_to_what_is_imported_already(world: World) -> None:
    id_, package = patched(world)
    importlib.import_module(package)
    engine = world.engine()
    assert engine.status()[id_].state is State.APPLIED
    assert greeting(package) == "goodbye you"


GIVES_A_NAME = """
def look(code):
    return None

def apply(patch, module):
    patch.replace(module, "Dict", dict)
"""


def test_applied_before_the_target_runs(world: World) -> None:
    world.distribution("fakelib", "1.5")
    package = world.package("lacking", "def greet(who=Dict): ...\nmine = 1\n")
    id_ = world.patch(package, NEEDS, GIVES_A_NAME, before="true")
    engine = world.engine()
    module = importlib.import_module(package)
    assert engine.status()[id_].state is State.APPLIED
    engine.undo([id_])
    assert not hasattr(module, "Dict")
    with pytest.raises(NameError):
        importlib.reload(module)
    engine.redo([id_])
    assert importlib.reload(module).Dict is dict
    with engine.disabled([id_]):
        assert not hasattr(module, "Dict")
    assert module.Dict is dict


def test_not_needed_by_version(world: World) -> None:
    id_, package = patched(world, version="2.0rc1")
    engine = world.engine()
    assert engine.status()[id_] == (id_, State.NOT_NEEDED, "fakelib 2.0rc1 is not >=1,<2.dev0")
    assert greeting(package) == "hello you"


def test_not_needed_by_the_code(world: World) -> None:
    id_, package = patched(world)
    world.package(package, 'def greet(who):\n    return "goodbye for good " + who\n')
    engine = world.engine()
    importlib.import_module(package)
    assert engine.status()[id_] == (id_, State.NOT_NEEDED, "greet is fixed upstream")


def test_a_target_of_another_shape_is_a_conflict(world: World, warnings: list[str]) -> None:
    id_, package = patched(world)
    world.package(package, "def welcome(who):\n    return who\n")
    engine = world.engine()
    importlib.import_module(package)
    assert engine.status()[id_].state is State.CONFLICT
    assert "has no greet" in engine.status()[id_].reason
    (said,) = warnings
    assert f"explain {id_}" in said


def test_off_by_the_environment(world: World) -> None:
    id_, package = patched(world)
    engine = world.engine(VLMPATCH_DISABLE=id_)
    assert greeting(package) == "hello you"
    assert engine.status()[id_] == (id_, State.OFF, "VLMPATCH_DISABLE names it")


FAILS_HALFWAY = (
    PATCH.replace("def apply", "def half")
    + """
def apply(patch, module):
    half(patch, module)
    patch.replace(module, "left", "behind")
    raise RuntimeError("in the middle")
"""
)


def test_a_failing_patch_is_rolled_back_and_the_host_unharmed(world: World, warnings: list[str]) -> None:
    id_, package = patched(world, source=FAILS_HALFWAY)
    engine = world.engine()
    assert greeting(package) == "hello you"
    assert not hasattr(sys.modules[package], "left")
    status = engine.status()[id_]
    assert status.state is State.FAILED
    assert "in the middle" in status.reason
    assert len(warnings) == 1


def test_strict_mode_raises(world: World, warnings: list[str]) -> None:
    _, package = patched(world, source=FAILS_HALFWAY)
    world.engine(VLMPATCH_STRICT="1")
    with pytest.raises(PatchError, match="in the middle"):
        importlib.import_module(package)


@pytest.mark.parametrize("source", ["def apply(:", "import nosuchmodule", "x = 1"])
def test_a_broken_patch_file(world: World, warnings: list[str], source: str) -> None:
    id_, package = patched(world, source=source)
    engine = world.engine()
    assert greeting(package) == "hello you"
    assert engine.status()[id_].state is State.FAILED


def test_a_missing_attribute_fails_that_patch_only(world: World, warnings: list[str]) -> None:
    broken, package = patched(world, source=PATCH.replace('"greet", lambda', '"gone", lambda'))
    sound, other = patched_again(world)
    engine = world.engine()
    assert (greeting(package), greeting(other)) == ("hello you", "goodbye you")
    assert engine.status()[broken].state is State.FAILED
    assert engine.status()[sound].state is State.APPLIED


def patched_again(world: World) -> tuple[str, str]:
    package = world.package(f"target{len(world.entries)}")
    return world.patch(package, NEEDS), package


def test_undo_one_and_all(world: World) -> None:
    one, package = patched(world)
    two, other = patched_again(world)
    engine = world.engine()
    importlib.import_module(package), importlib.import_module(other)
    assert engine.undo([one]) == []
    assert (greeting(package), greeting(other)) == ("hello you", "goodbye you")
    engine.undo([])
    assert greeting(other) == "hello you"
    assert {status.state for status in engine.status().values()} == {State.OFF}
    importlib.reload(sys.modules[other])
    assert greeting(other) == "hello you"
    assert two in engine.status()


def test_disabled_for_a_while(world: World) -> None:
    id_, package = patched(world)
    engine = world.engine()
    with engine.disabled([id_]):
        assert greeting(package) == "hello you"
        assert engine.status()[id_].state is State.OFF
    assert greeting(package) == "goodbye you"
    with engine.disabled([]):
        assert greeting(package) == "hello you"
    assert greeting(package) == "goodbye you"
    assert engine.status()[id_].state is State.APPLIED


def test_disabled_leaves_what_the_user_switched_off(world: World) -> None:
    id_, package = patched(world)
    engine = world.engine(VLMPATCH_DISABLE=id_)
    with engine.disabled([id_]):
        pass
    assert greeting(package) == "hello you"


def test_reload_patches_again(world: World) -> None:
    id_, package = patched(world)
    engine = world.engine()
    module = importlib.import_module(package)
    importlib.reload(module)
    assert greeting(package) == "goodbye you"
    assert engine.status()[id_].state is State.APPLIED


def test_a_second_engine_finds_the_layer_and_adds_none(world: World, warnings: list[str]) -> None:
    id_, package = patched(world)
    first = world.engine()
    importlib.import_module(package)
    second = Engine(first.catalog, first.asked)
    world.engines.append(second)
    second.arm()
    assert second.status()[id_].state is State.CONFLICT
    assert "another copy" in second.status()[id_].reason
    assert greeting(package) == "goodbye you"


def test_require(world: World, warnings: list[str]) -> None:
    good, package = patched(world)
    bad, _ = patched_again(world)
    engine = world.engine(VLMPATCH_DISABLE=bad)
    engine.require([good])
    importlib.import_module(package)
    engine.require([good])
    with pytest.raises(PatchError, match=f"{bad} is off"):
        engine.require([good, bad])
    with pytest.raises(PatchError, match=f"Did you mean '{good}'"):
        engine.require([good.replace("fake", "fke")])


def test_a_former_id_is_understood_and_told_once(world: World, warnings: list[str]) -> None:
    id_, package = patched(world, was='["old-id", "older-id"]')
    engine = world.engine()
    importlib.import_module(package)
    for _ in range(2):
        engine.require(["old-id", id_])
    (said,) = warnings
    assert f"[{id_}]: 'old-id' has become '{id_}'" in said
    with engine.disabled(["old-id"]):
        assert greeting(package) == "hello you"
    engine.undo(["older-id"])
    assert engine.status()[id_].state is State.OFF
    assert len(warnings) == 2
    with pytest.raises(PatchError, match=f"patch {id_} is off"):
        engine.require(["old-id"])
    engine.redo(["older-id"])
    assert engine.status()[id_].state is State.APPLIED


def test_a_former_id_switches_off_in_the_environment(world: World, warnings: list[str]) -> None:
    id_, package = patched(world, was='["old-id"]')
    engine = world.engine(VLMPATCH_DISABLE="old-id")
    importlib.import_module(package)
    assert engine.status()[id_].state is State.OFF
    (said,) = warnings
    assert f"VLMPATCH_DISABLE: 'old-id' has become '{id_}'. Write the new id" in said


def test_two_targets_and_only_one_exists(world: World) -> None:
    id_, package = patched(world, targets='["target0", "target_that_never_comes"]')
    engine = world.engine()
    importlib.import_module(package)
    assert engine.status()[id_].state is State.APPLIED


@pytest.mark.parametrize("kind", ["RuntimeError", "KeyboardInterrupt", "SystemExit"])
@pytest.mark.parametrize("broken", [0, 1])
def test_two_targets_and_one_fails(world: World, warnings: list[str], broken: int, kind: str) -> None:
    """Whichever comes first: the patch is nowhere, and comes whole once it can."""
    names = [world.package(f"part{number}") for number in range(2)]
    fails = f"""
import sys
def look(code): return None
def apply(patch, module):
    patch.wrap(module, "greet", lambda f, *args, **kw: f(*args, **kw).replace("hello", "goodbye"))
    if module.__name__ == "{names[broken]}" and not hasattr(sys, "fixed"):
        raise {kind}("no")
"""
    world.distribution("fakelib", "1.5")
    id_ = world.patch("part0", NEEDS, fails, targets='["part0", "part1"]')
    engine = world.engine()
    for number, name in enumerate(names):
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            assert greeting(name) == ("goodbye you" if number < broken else "hello you")
    assert [greeting(name) for name in names] == ["hello you"] * 2
    assert engine.status()[id_].state is State.FAILED
    assert not engine.journal.changes(id_)
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        engine.redo([])
    assert [greeting(name) for name in names] == ["hello you"] * 2
    sys.fixed = True  # type: ignore[attr-defined]
    try:
        engine.redo([])
    finally:
        del sys.fixed  # type: ignore[attr-defined]
    assert engine.status()[id_].state is State.APPLIED
    assert [greeting(name) for name in names] == ["goodbye you"] * 2
    engine.undo([])
    assert [greeting(name) for name in names] == ["hello you"] * 2


def test_a_broken_range_fails_its_patch_with_the_catalog_named(world: World, warnings: list[str]) -> None:
    world.distribution("fakelib", "1")
    package = world.package("target0")
    id_ = world.patch(package, '{ fakelib = "soon" }')
    engine = world.engine()
    assert greeting(package) == "hello you"
    assert "requires.fakelib" in engine.status()[id_].reason


REMOTE = """
import sys, types

NAME = "transformers_modules.tiny.modeling_tiny"

def get_class_in_module(name, path):
    module = sys.modules.setdefault(NAME, types.ModuleType(NAME))
    module.__file__ = path
    exec(compile(open(path).read(), path, "exec"), module.__dict__)
    return getattr(module, name)
"""


def test_remote_code_is_patched_at_each_execution(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' own door is driven in tests/e2e; here its shape, executed anew at each load."""
    world.distribution("fakelib", "1.5")
    package = ModuleType("transformers")
    package.__path__ = [str(world.folder / "transformers")]
    monkeypatch.setitem(sys.modules, "transformers", package)
    (world.folder / "transformers").mkdir()
    (world.folder / "transformers" / "dynamic_module_utils.py").write_text(REMOTE)
    source = 'class Tiny:\n    def greet(self):\n        return "hello"\n'
    (world.folder / "modeling_tiny.py").write_text(source)
    patch = (
        "def look(code):\n    return None\n"
        "def apply(patch, module):\n    patch.wrap(module.Tiny, 'greet', lambda original, self: 'goodbye')\n"
    )
    id_ = world.patch("transformers_modules.*.modeling_tiny", NEEDS, patch)
    engine = world.engine()
    door: Any = importlib.import_module("transformers.dynamic_module_utils")
    path = str(world.folder / "modeling_tiny.py")
    first, second = (door.get_class_in_module("Tiny", path) for _ in range(2))
    assert first is not second
    assert (first().greet(), second().greet()) == ("goodbye", "goodbye")
    assert engine.status()[id_].state is State.APPLIED


SAYS = "lambda f, *args, **kw: f(*args, **kw) + {!r}"


def saying(words: str) -> str:
    return PATCH.replace(
        'lambda f, *args, **kw: f(*args, **kw).replace("hello", "goodbye")',
        SAYS.format(words),
    )


def test_disabled_switches_layer_and_handle_on_again_whichever_patch_shares_the_attribute(
    world: World,
) -> None:
    world.distribution("fakelib", "1.5")
    package = world.package("target")
    one, two = world.patch(package, NEEDS, saying(" 1")), world.patch(package, NEEDS, LATE)
    engine = world.engine()
    assert greeting(package) == "hello you 1 2"
    for id_, rest in ((one, "hello you 2"), (two, "hello you 1")):
        with engine.disabled([id_]):
            assert greeting(package) == rest
        assert greeting(package) == "hello you 1 2"
        module: Any = sys.modules[package]
        assert module.late == "set", "the handle is dead while the layer acts"
        del module.late


LATE = """
def look(code):
    return None

def apply(patch, module):
    def said(original, *args, **kwargs):
        patch.replace(module, "late", "set")
        return original(*args) + " 2"
    patch.wrap(module, "greet", said)
"""


def test_disabled_counts(world: World) -> None:
    id_, package = patched(world)
    engine = world.engine()
    importlib.import_module(package)
    with engine.disabled([id_]):
        with engine.disabled([]):
            assert greeting(package) == "hello you"
        assert greeting(package) == "hello you"
    assert greeting(package) == "goodbye you"


def test_undo_inside_disabled_is_remembered(world: World) -> None:
    id_, package = patched(world)
    engine = world.engine()
    before = vars(importlib.import_module(package))["greet"].__wrapped__
    with engine.disabled([id_]):
        engine.undo([id_])
    assert vars(sys.modules[package])["greet"] is before
    assert engine.status()[id_].reason == "undone by vlmpatch.undo()"
    engine.redo([id_])
    assert greeting(package) == "goodbye you"
    assert engine.status()[id_].state is State.APPLIED


def test_redo_inside_disabled_waits_for_its_end(world: World) -> None:
    id_, package = patched(world)
    engine = world.engine()
    importlib.import_module(package)
    engine.undo([id_])
    with engine.disabled([id_]):
        engine.redo([id_])
        assert greeting(package) == "hello you"
    assert greeting(package) == "goodbye you"


def test_redo_leaves_what_the_environment_switched_off(world: World) -> None:
    id_, package = patched(world)
    engine = world.engine(VLMPATCH_DISABLE=id_)
    engine.undo([])
    engine.redo([])
    assert greeting(package) == "hello you"
    assert engine.status()[id_].state is State.OFF


def test_what_was_hooked_and_set_while_it_ran_comes_back(world: World) -> None:
    """What a patch changed from inside its layers is not lost when it is off for a moment."""
    world.distribution("fakelib", "1.5")
    package = world.package("target", "settings = {}\ndef greet(who):\n    return who\n")
    source = """
def look(code):
    return None

def apply(patch, module):
    def late(original, who):
        patch.set_item(module.settings, who, True)
        return original(who)
    patch.wrap(module, "greet", late)
"""
    id_ = world.patch(package, NEEDS, source)
    engine = world.engine()
    greeting(package)
    settings = vars(sys.modules[package])["settings"]
    with engine.disabled([id_]):
        assert settings == {}
    assert settings == {"you": True}
    engine.undo([id_])
    assert settings == {}


def test_imported_and_reloaded_inside_disabled(world: World) -> None:
    id_, package = patched(world)
    engine = world.engine()
    with engine.disabled([id_]):
        module = importlib.import_module(package)
        assert greeting(package) == "hello you"
    assert greeting(package) == "goodbye you"
    with engine.disabled([]):
        importlib.reload(module)
        assert greeting(package) == "hello you"
    assert greeting(package) == "goodbye you"
    plain = vars(module)["greet"].__wrapped__
    engine.undo([id_])
    assert vars(module)["greet"] is plain


def test_a_second_look_is_no_other_copy(world: World) -> None:
    id_, package = patched(world)
    engine = world.engine()
    importlib.import_module(package)
    layer = vars(sys.modules[package])["greet"]
    for _ in range(3):
        engine.hooks.executed(package)
    assert vars(sys.modules[package])["greet"] is layer
    assert engine.status()[id_].state is State.APPLIED


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit"])
def test_an_interruption_rolls_back_and_goes_on_its_way(world: World, error: str) -> None:
    id_, package = patched(world, source=FAILS_HALFWAY.replace('RuntimeError("in the middle")', error))
    other = world.patch(package, NEEDS, saying("!"))
    engine = world.engine()
    raised: type[BaseException] = {"KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit}[error]
    with pytest.raises(raised):
        importlib.import_module(package)
    assert engine.status()[id_].state is State.FAILED
    assert engine.journal.changes(id_) == []
    assert engine.status()[other].state is State.ARMED


def test_an_interruption_of_a_sweep_leaves_the_other_patches_their_turn(world: World) -> None:
    source = FAILS_HALFWAY.replace('RuntimeError("in the middle")', "KeyboardInterrupt")
    id_, package = patched(world, source=source)
    other = world.patch(package, NEEDS, saying("!"))
    engine = world.engine()
    sys.modules[package] = module = ModuleType(package)
    module.__file__ = str(world.folder / f"{package}.py")
    module.greet = lambda who: who  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        engine.status()
    assert engine.status()[id_].state is State.FAILED
    assert engine.status()[other].state is State.APPLIED
    assert greeting(package) == "you!"


def test_a_target_that_does_not_bind_is_a_conflict(world: World, warnings: list[str]) -> None:
    world.distribution("fakelib", "1.5")
    package = world.package("target", "import functools\nclass A:\n    greet = functools.partial(int)\n")
    source = PATCH.replace("function is None", "False").replace(" in function", " in ()")
    source = source.replace('wrap(module, "greet"', 'wrap(module.A, "greet"')
    id_ = world.patch(package, NEEDS, source)
    engine = world.engine()
    importlib.import_module(package)
    assert engine.status()[id_].state is State.CONFLICT
    assert "partial" in engine.status()[id_].reason


def test_what_is_wrong_with_the_environment_is_said_at_the_start(world: World, warnings: list[str]) -> None:
    patched(world)
    world.engine(VLMPATCH_DISABLE="no-such-patch")
    assert any("no-such-patch" in words for words in warnings)


def test_info_says_what_the_environment_switched_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    id_, _ = patched(world)
    said: list[str] = []
    monkeypatch.setattr(log, "info", said.append)
    world.engine(VLMPATCH_DISABLE=id_)
    assert said == [f"VLMPATCH_DISABLE switches off {id_}"]


def test_redo_reaches_a_target_whose_import_is_not_quite_over(world: World) -> None:
    _, package = patched(world)
    engine = world.engine()
    module: Any = importlib.import_module(package)
    module.__spec__._initializing = True  # the import system says so a little longer than is true
    engine.undo([])
    engine.redo([])
    assert greeting(package) == "goodbye you"


def test_a_target_that_was_imported_anew_is_the_one_that_counts(world: World) -> None:
    _, package = patched(world)
    engine = world.engine()
    former = importlib.import_module(package)
    del sys.modules[package]
    importlib.import_module(package)
    engine.undo([])
    engine.redo([])
    assert greeting(package) == "goodbye you"
    assert former.greet("you") == "hello you"


def test_threads_and_a_fork_in_the_middle(world: World) -> None:
    """A child that is forked while another thread is inside the engine goes on."""
    _, package = patched(world)
    engine = world.engine()
    importlib.import_module(package)
    entered, leave = threading.Event(), threading.Event()

    def inside() -> None:
        with engine._lock, engine.journal.lock, engine.hooks._lock:
            entered.set()
            within(LONG, leave.wait)

    thread = threading.Thread(target=inside)
    thread.start()
    assert within(LONG, entered.wait)

    def forked() -> None:
        engine.undo([])
        raise SystemExit(0 if greeting(package) == "hello you" and engine.status() else 1)

    child = multiprocessing.get_context("fork").Process(target=forked)
    child.start()
    leave.set()
    thread.join()
    child.join()
    assert child.exitcode == 0
    assert greeting(package) == "goodbye you"


def test_many_threads_in_and_out(world: World) -> None:
    id_, package = patched(world)
    engine = world.engine()
    importlib.import_module(package)
    plain = vars(sys.modules[package])["greet"].__wrapped__
    said: set[str] = set()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(30):
                if number % 4 == 0:
                    with engine.disabled([id_]):
                        assert greeting(package) == "hello you"
                elif number % 4 == 1:
                    engine.undo([id_])
                    engine.redo([id_])
                elif number % 4 == 2:
                    importlib.reload(sys.modules["reloaded"])
                else:
                    said.add(greeting(package))
        except BaseException as error:
            errors.append(error)

    world.package("reloaded", "")
    importlib.import_module("reloaded")
    threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    assert joined(threads)
    assert errors == []
    assert said <= {"hello you", "goodbye you"}
    assert greeting(package) == "goodbye you"
    engine.undo([])
    assert vars(sys.modules[package])["greet"] is plain


def test_a_patch_warns_once_and_not_after_it_is_off(world: World, warnings: list[str]) -> None:
    world.distribution("fakelib", "1.5")
    world.package("target")
    warning = (
        "def look(code): return None\n"
        "def apply(patch, module): patch.wrap(module, 'greet', warn(patch))\n"
        "def warn(patch):\n"
        "    def warned(original, who):\n"
        "        patch.warn(who, f'{who} is greeted')\n"
        "        return original(who)\n"
        "    return warned\n"
    )
    id_ = world.patch("target", NEEDS, warning)
    engine = world.engine()
    target = importlib.import_module("target")
    greet = target.greet
    for who in ("you", "you", "me"):
        greet(who)
    assert len(warnings) == 2
    assert all(id_ in line for line in warnings)
    assert "you is greeted" in warnings[0]
    handle = engine._handles[id_]
    engine.undo([id_])
    handle.warn("they", "they are greeted")
    assert len(warnings) == 2


def test_what_is_true_of_one_rank_is_said_by_that_rank(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log, "_said", set())
    monkeypatch.setenv("LOCAL_RANK", "1")
    log.warn_once("some-patch", "all", "as on every rank")
    log.warn_once("some-patch", "one", "here alone", own=True)
    (said,) = caplog.messages
    assert "here alone" in said
