from __future__ import annotations

import copy
import functools
import gc
import inspect
import itertools
import pickle
import sys
import weakref
from collections import UserDict
from multiprocessing import context
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import pytest
import wrapt

from vlmpatch.journal.changes import Hook, Hooked
from vlmpatch.journal.journal import ABSENT, AlreadyPatched, Foreign, Journal, default_of
from vlmpatch.journal.values import assign


def greet(who: str, *, loud: bool = False) -> str:
    return f"hello {who}" + ("!" if loud else "")


class Base:
    def method(self, x: int) -> int:
        return x + 1

    @staticmethod
    def static(x: int) -> int:
        return x + 1

    @classmethod
    def kind(cls, x: int) -> tuple[str, int]:
        return cls.__name__, x


class Child(Base):
    pass


class Other(Base):
    pass


class Run:
    def __init__(self) -> None:
        self.model = 1
        self.steps_ = 1

    @property
    def steps(self) -> int:
        return self.steps_

    @steps.setter
    def steps(self, value: int) -> None:
        self.steps_ = value


def shout(original: Any, *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs).upper()


def plus_ten(original: Any, *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs) + 10


HERE: Any = sys.modules[__name__]


@pytest.fixture
def journal() -> Any:
    made = Journal()
    yield made
    made.rollback(["p", "q"])


def test_wrap_and_undo(journal: Journal) -> None:
    before = greet
    journal.wrap("p", HERE, "greet", shout)
    assert HERE.greet("you", loud=True) == "HELLO YOU!"
    assert journal.changes("p") == [f"wrapped {__name__}.greet"]
    assert journal.rollback(["p"]) == []
    assert HERE.greet is before
    assert journal.changes("p") == []


def test_a_wrapped_function_pickles_and_shows_its_signature(journal: Journal) -> None:
    signature = inspect.signature(greet)
    journal.wrap("p", HERE, "greet", shout)
    assert pickle.loads(pickle.dumps(HERE.greet)) is HERE.greet
    assert inspect.signature(HERE.greet) == signature
    assert inspect.isfunction(HERE.greet)


def test_a_function_sent_by_value_takes_the_original_along_and_nothing_of_ours(journal: Journal) -> None:
    original = greet
    journal.wrap("p", HERE, "greet", shout)
    journal.wrap("q", HERE, "greet", shout)
    ours = [cell.cell_contents for cell in HERE.greet.__closure__]
    ((call, below, _, aside),) = (copy.copy(top) for (top,) in ours)
    assert call(below, "you") == original("you") != HERE.greet("you")
    assert not aside(AttributeError("lacking"), ("you",), {})
    assert copy.copy(vars(HERE.greet)["__vlmpatch__"]) == set()


def test_methods_keep_their_kind(journal: Journal) -> None:
    journal.wrap("p", Base, "method", plus_ten)
    journal.wrap("p", Base, "static", plus_ten)
    journal.wrap("p", Base, "kind", lambda original, cls, x: original(cls, x + 10))
    assert Base().method(1) == 12
    assert Child().method(1) == 12
    assert Base.static(1) == 12
    assert Child.kind(1) == ("Child", 11)
    bound: Any = Base().method
    assert bound.__func__ is Base.method
    journal.rollback(["p"])
    assert (Base().method(1), Base.static(1), Child.kind(1)) == (2, 2, ("Child", 1))


def test_an_inherited_method_is_removed_again(journal: Journal) -> None:
    journal.wrap("p", Child, "method", plus_ten)
    assert (Child().method(1), Base().method(1)) == (12, 2)
    journal.rollback(["p"])
    assert "method" not in vars(Child)


def test_init_subclass_which_everybody_inherits(journal: Journal) -> None:
    class Root:
        pass

    class Mixin:
        seen: ClassVar[list[str]] = []

        def __init_subclass__(cls) -> None:
            super().__init_subclass__()
            Mixin.seen.append(cls.__name__)

    made: list[str] = []

    def note(original: Any, cls: type, /, *args: Any, **kwargs: Any) -> None:
        original(cls, *args, **kwargs)
        made.append(cls.__name__)

    journal.wrap("p", Root, "__init_subclass__", note)

    class Leaf(Root, Mixin):
        pass

    assert made == ["Leaf"]
    assert Mixin.seen == ["Leaf"]


def test_default_reaches_every_holder(journal: Journal) -> None:
    copy = greet

    @functools.wraps(greet)
    def decorated(*args: Any, **kwargs: Any) -> str:
        return greet(*args, **kwargs)

    journal.set_default("p", decorated, "loud", True)
    assert copy("you") == "hello you!"
    assert decorated("you") == "hello you!"
    assert copy("you", loud=False) == "hello you"
    journal.rollback(["p"])
    assert copy("you") == "hello you"


def test_positional_default(journal: Journal) -> None:
    def function(a: int, b: int = 1, c: int = 2) -> tuple[int, int, int]:
        return a, b, c

    journal.set_default("p", function, "b", 5)
    assert function(0) == (0, 5, 2)
    assert isinstance(function, FunctionType)
    assert default_of(function, "a") is ABSENT
    with pytest.raises(ValueError, match="no parameter 'a'"):
        journal.set_default("p", function, "a", 5)
    journal.rollback(["p"])
    assert function(0) == (0, 1, 2)


def test_replace_new_and_old(journal: Journal) -> None:
    target = ModuleType("target")
    target.old = 1  # type: ignore[attr-defined]
    journal.replace("p", target, "old", 2)
    journal.replace("p", target, "new", 3)
    assert (target.old, target.new) == (2, 3)
    journal.rollback(["p"])
    assert vars(target)["old"] == 1
    assert not hasattr(target, "new")


def test_replaced_once_more_lies_where_the_first_lay(journal: Journal) -> None:
    target = ModuleType("target")
    target.old = 1  # type: ignore[attr-defined]
    for value in (2, 3):
        journal.replace("p", target, "old", value)
        assert vars(target)["old"] == value
    journal.replace("q", target, "old", 4)
    journal.replace("p", target, "old", 5)
    assert vars(target)["old"] == 4
    assert [len(journal.changes(patch)) for patch in "pq"] == [1, 1]
    journal.rollback(["q"])
    assert vars(target)["old"] == 5
    journal.rollback(["p"])
    assert vars(target)["old"] == 1


def test_what_is_taken_back_is_forgotten(journal: Journal) -> None:
    run = Run()
    journal.replace("q", run, "model", 2)
    with journal.swapped("p", run, "steps_", 3):
        assert len(journal.changes("p")) == len(journal.changes("q")) == 1
    journal.suspend("q")
    assert journal.changes("q") == []
    assert len(journal._records) == 1
    journal.rollback(["q"])
    assert journal._records == []


def test_an_inherited_static_method_returns_what_it_returned(journal: Journal) -> None:
    journal.wrap("p", Child, "static", plus_ten)
    assert Child.static(1) == Child().static(1) == 12
    assert Base.static(1) == 2
    journal.rollback(["p"])
    assert "static" not in vars(Child)
    assert Child.static(1) == 2


def test_swapped_for_a_block_only(journal: Journal) -> None:
    run = Run()
    with journal.swapped("p", run, "model", 2), journal.swapped("p", run, "new", 3):
        assert (run.model, run.__dict__["new"]) == (2, 3)
        assert journal.changes("p") == [f"swapped {__name__}.Run.model", f"swapped {__name__}.Run.new"]
    assert vars(run) == {"model": 1, "steps_": 1}
    assert journal.changes("p") == []


def test_swapped_is_undone_by_an_error_and_once_only(journal: Journal) -> None:
    run = Run()
    with pytest.raises(KeyError), journal.swapped("p", run, "model", 2):
        raise KeyError
    assert run.model == 1
    with journal.swapped("p", run, "model", 2):
        journal.rollback(["p"])
        assert run.model == 1
        run.model = 2  # the program's own 2, not ours
    assert run.model == 2


def test_what_lies_behind_a_property_comes_back(journal: Journal) -> None:
    run = Run()
    journal.replace("p", run, "steps", 4)
    assert run.steps == 4
    assert journal.rollback(["p"]) == []
    assert run.steps == 1


def test_a_run_is_not_kept_alive(journal: Journal) -> None:
    run = Run()
    alive = weakref.ref(run)
    journal.replace("p", run, "model", 2)
    del run
    assert alive() is None
    settings = UserDict(lr=1)
    alive_too = weakref.ref(settings)
    journal.set_item("p", settings, "lr", 2)
    del settings
    assert alive_too() is None
    assert journal.rollback(["p"]) == []


class Sealed(type):
    """Lets nobody write to its classes."""

    def __setattr__(cls, name: str, value: Any) -> None:
        raise TypeError(name)


def test_what_lets_nobody_write_stays_as_it_is(journal: Journal) -> None:
    class Kept(Base, metaclass=Sealed):
        def method(self, x: int) -> int:
            return x + 2

    with pytest.raises(Foreign):
        journal.wrap("p", Kept, "method", plus_ten)
    with pytest.raises(Foreign):
        journal.replace("p", Kept, "model", 2)
    with pytest.raises(Foreign), journal.swapped("p", Kept, "model", 2):
        pass
    assert (Kept().method(1), journal.changes("p")) == (3, [])
    journal.suspend("p")
    journal.resume("p")
    assert Kept().method(1) == 3


def test_items_are_put_back(journal: Journal) -> None:
    registry = {"old": "1"}
    journal.set_item("p", registry, "old", "2")
    journal.set_item("p", registry, "new", "3")
    assert registry == {"old": "2", "new": "3"}
    registry["new"] = "4"
    (remark,) = journal.rollback(["p"])
    assert "another library changed it since" in remark
    assert registry == {"old": "1", "new": "4"}


def test_another_library_patched_on_top_and_keeps_its_wrapper(journal: Journal) -> None:
    journal.wrap("p", HERE, "greet", shout)
    ours = HERE.greet

    @functools.wraps(ours)
    def theirs(*args: Any, **kwargs: Any) -> str:
        return f"<{ours(*args, **kwargs)}>"

    before = HERE.greet.__wrapped__
    HERE.greet = theirs
    try:
        (remark,) = journal.rollback(["p"])
        assert "switched off in place" in remark
        assert HERE.greet("you") == "<hello you>"
        journal.wrap("p", HERE, "greet", shout)
        assert HERE.greet("you") == "<HELLO YOU>"
        assert HERE.greet is theirs
        journal.rollback(["p"])
        assert HERE.greet("you") == "<hello you>"
    finally:
        HERE.greet = before


def test_another_library_changed_the_default_since(journal: Journal) -> None:
    def function(x: object = None) -> object:
        return x

    journal.set_default("p", function, "x", 1)
    function.__defaults__ = (2,)
    (remark,) = journal.rollback(["p"])
    assert "another library changed it since" in remark
    assert function() == 2


def test_a_wrapper_alone_is_handed_the_function_itself(journal: Journal) -> None:
    """Nothing lies between the two that would cost a call more."""
    before, handed = HERE.greet, []

    def keep(original: Any, who: str, **kwargs: Any) -> Any:
        handed.append(original)
        return original(who, **kwargs)

    journal.wrap("p", HERE, "greet", keep)
    HERE.greet("you")
    assert handed == [before]


def test_a_neighbour_who_comes_and_goes_leaves_nothing_to_undo(journal: Journal) -> None:
    before = HERE.greet
    journal.wrap("p", HERE, "greet", shout)
    ours = HERE.greet
    HERE.greet = functools.wraps(ours)(lambda who: ours(who) + "?")
    journal.suspend("p")
    journal.resume("p")
    assert HERE.greet("you") == "HELLO YOU?"
    HERE.greet = ours
    assert journal.rollback(["p"]) == []
    assert HERE.greet is before


def test_a_hook_goes_to_a_process_that_is_spawned_and_into_no_file() -> None:
    hook = Hook(greet)
    assert b"vlmpatch" not in pickle.dumps(hook)
    context.set_spawning_popen(mock.Mock())
    try:
        made, arguments = hook.__reduce__()
    finally:
        context.set_spawning_popen(None)
    assert made(*arguments)("you") == "hello you"
    assert pickle.loads(pickle.dumps(hook))("you") is None


def test_two_patches_on_one_target_undo_in_any_order() -> None:
    for order in (["p", "q"], ["q", "p"]):
        journal = Journal()
        before = HERE.greet
        journal.wrap("p", HERE, "greet", shout)
        journal.wrap("q", HERE, "greet", lambda original, *args, **kwargs: original(*args, **kwargs) + "?")
        for patch in order:
            journal.rollback([patch])
        assert HERE.greet("you") == "hello you"
        HERE.greet = before


def test_a_wrapper_from_another_copy_is_refused_and_ones_own_is_enough(journal: Journal) -> None:
    journal.wrap("p", HERE, "greet", shout)
    with pytest.raises(AlreadyPatched):
        Journal().wrap("p", HERE, "greet", shout)
    wrapped = HERE.greet
    journal.wrap("p", HERE, "greet", shout)
    assert HERE.greet is wrapped
    assert journal.changes("p") == [f"wrapped {__name__}.greet"]


class Hookable:
    def __init__(self) -> None:
        self.hooks: dict[int, Any] = {}

    def register(self, hook: Any) -> Any:
        number = len(self.hooks)
        self.hooks[number] = hook
        module = weakref.ref(self)  # as torch's handles

        def remove() -> None:
            if (its := module()) is not None:
                its.hooks.pop(number, None)

        return SimpleNamespace(remove=remove)


def loud(text: str) -> str:
    return text.upper()


def test_hooks_are_registered_once_and_removed(journal: Journal) -> None:
    module = Hookable()
    journal.hook("p", module.register, loud)
    journal.hook("p", module.register, loud)
    (hook,) = module.hooks.values()
    assert hook("a") == "A"
    journal.rollback(["p"])
    assert module.hooks == {}
    assert hook("a") is None, "a copy of the module must not keep a hook that acts"


def test_two_hooks_of_one_patch_are_two(journal: Journal) -> None:
    module = Hookable()
    journal.replace("p", module, "other", 1)
    for function in (loud, str.lower):
        journal.hook("p", module.register, function)
    assert [hook("Ab") for hook in module.hooks.values()] == ["AB", "ab"]
    journal.suspend("p")
    assert module.hooks == {}
    journal.resume("p")
    assert [hook("Ab") for hook in module.hooks.values()] == ["AB", "ab"]


def test_what_cannot_come_back_is_forgotten(journal: Journal) -> None:
    run = Run()
    journal.replace("p", run, "model", 2)
    journal.suspend("p")
    del run
    journal.resume("p")
    assert journal._records == []


def test_a_hook_comes_back_and_keeps_nobody_alive(journal: Journal) -> None:
    module = Hookable()
    journal.hook("p", module.register, loud)
    journal.suspend("p")
    assert module.hooks == {}
    journal.resume("p")
    assert [hook("a") for hook in module.hooks.values()] == ["A"]
    alive = weakref.ref(module)
    del module
    assert alive() is None
    journal.suspend("p")
    journal.resume("p")


class Knows:
    def __init__(self, module: Hookable) -> None:
        self.module = module

    def called(self, text: str) -> str:
        return text.upper()


def test_a_hook_that_knows_what_it_hooks_keeps_it_no_longer_than_others_do(journal: Journal) -> None:
    module = Hookable()

    journal.hook("p", module.register, Knows(module).called)
    journal.suspend("p")
    journal.resume("p")
    assert [hook("a") for hook in module.hooks.values()] == ["A"]
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None


def test_a_value_of_a_run_is_assigned() -> None:
    run = Run()
    assign(run, "model", 2)
    assert run.model == 2


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (HERE, "greet", 1),
        (Run, "model", 1),
        (greet, "calls", 1),
        (Child(), "method", 1),
        (Run(), "model", greet),
    ],
)
def test_what_is_code_is_no_value_of_a_run(owner: Any, name: str, value: Any) -> None:
    with pytest.raises(TypeError, match="code"):
        assign(owner, name, value)


def test_what_is_not_there_is_no_value_of_a_run() -> None:
    run = Run()
    with pytest.raises(AttributeError):
        assign(run, "vlmpatch_was_here", 1)
    assert not hasattr(run, "vlmpatch_was_here")


def test_a_pickled_hook_needs_nothing_and_does_nothing(journal: Journal) -> None:
    module = Hookable()
    journal.hook("p", module.register, loud)
    (hook,) = module.hooks.values()
    assert copy.deepcopy(hook) is hook
    data = pickle.dumps(hook)
    assert b"vlmpatch" not in data
    assert pickle.loads(data)("module", (), {}) is None


def suffix(mark: str) -> Any:
    return lambda original, /, *args, **kwargs: original(*args, **kwargs) + mark


@pytest.mark.parametrize("order", list(itertools.permutations("pqr")))
def test_wrappers_and_values_come_off_in_any_order(order: tuple[str, ...]) -> None:
    journal = Journal()
    target = ModuleType("target")
    before = target.f = lambda: "f"  # type: ignore[attr-defined]
    value = target.v = object()  # type: ignore[attr-defined]

    def function(*, x: object = None) -> object:
        return x

    found = function.__kwdefaults__
    for patch in "pqr":
        journal.wrap(patch, target, "f", suffix(patch))
        journal.replace(patch, target, "v", patch)
        journal.set_default(patch, function, "x", patch)
    assert (target.f(), target.v, function()) == ("fpqr", "r", "r")
    left = ["p", "q", "r"]
    for patch in order:
        assert journal.rollback([patch]) == []
        left.remove(patch)
        expected = ("f" + "".join(left), left[-1] if left else value, left[-1] if left else None)
        assert (target.f(), target.v, function()) == expected
    assert target.f is before
    assert function.__kwdefaults__ is found


@pytest.mark.parametrize("patch", ["p", "q", "r"])
def test_what_is_off_for_a_while_comes_back_where_it_was(patch: str) -> None:
    journal = Journal()
    target = ModuleType("target")
    target.f = lambda: "f"  # type: ignore[attr-defined]

    def function(*, x: object = None) -> object:
        return x

    for each in "pqr":
        journal.wrap(each, target, "f", suffix(each))
        journal.set_default(each, function, "x", each)
    for _ in range(2):
        journal.suspend(patch)
        assert target.f() == "fpqr".replace(patch, "")
        assert function() == ("q" if patch == "r" else "r")
        journal.resume(patch)
        assert (target.f(), function()) == ("fpqr", "r")
    journal.rollback("pqr")
    assert (target.f(), function()) == ("f", None)


def test_a_value_below_a_wrapper_goes_first(journal: Journal) -> None:
    target = ModuleType("target")
    before = target.f = lambda: "f"  # type: ignore[attr-defined]
    journal.replace("p", target, "f", lambda: "g")
    journal.wrap("q", target, "f", suffix("q"))
    assert target.f() == "gq"
    assert journal.rollback(["p"]) == []
    assert target.f() == "fq"
    assert journal.rollback(["q"]) == []
    assert target.f is before


def test_a_class_that_copies_a_patched_function_is_patched_and_unpatched(journal: Journal) -> None:
    class First:
        def method(self) -> str:
            return "m"

    journal.wrap("p", First, "method", suffix("p"))

    class Second:
        method: Any = First.method

    again = type("Again", First.__bases__, {"method": First.__dict__["method"]})
    cls: Any
    for cls in (Second, again):
        journal.wrap("p", cls, "method", suffix("p"))
        assert cls().method() == "m" + "p"
    journal.rollback(["p"])
    assert Second.method is First.method is again.method  # type: ignore[attr-defined]
    assert Second().method() == "m"


def plus_mark(original: Any, *args: Any, **kwargs: Any) -> Any:
    return ("p", *original(*args, **kwargs))


def test_a_neighbours_descriptor_keeps_its_binding(journal: Journal) -> None:
    seen: list[Any] = []

    def noting(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        seen.append(instance)
        return wrapped(*args, **kwargs)

    neighbour: Any = wrapt.decorator(noting)

    class Target:
        method: Any = neighbour(lambda self, x: (type(self).__name__, x))
        static: Any = neighbour(staticmethod(lambda x: ("static", x)))
        kind: Any = neighbour(classmethod(lambda cls, x: (cls.__name__, x)))

    class Below(Target):
        pass

    raw = dict(vars(Target))
    for name in ("method", "static", "kind"):
        journal.wrap("p", Target, name, plus_mark)
    target = Below()
    assert target.method(1) == ("p", "Below", 1)
    assert (Below.static(1), target.static(1)) == (("p", "static", 1),) * 2
    assert (Below.kind(1), target.kind(1)) == (("p", "Below", 1),) * 2
    assert seen == [target, None, None, Below, Below]
    journal.rollback(["p"])
    assert dict(vars(Target)) == raw


@pytest.mark.parametrize("odd", [functools.partial(int), len, mock.MagicMock(), int])
def test_what_does_not_bind_is_declined(journal: Journal, odd: Any) -> None:
    target: Any = type("Target", (), {"method": odd})
    with pytest.raises(Foreign):
        journal.wrap("p", target, "method", plus_ten)
    assert journal.changes("p") == []


def test_a_mock_on_top_and_gone_again(journal: Journal) -> None:
    before = greet
    journal.wrap("p", HERE, "greet", shout)
    with mock.patch.object(HERE, "greet", return_value="mocked"):
        assert len(journal.rollback(["p"])) == 1
    assert HERE.greet("you") == "hello you"
    journal.wrap("p", HERE, "greet", shout)
    assert HERE.greet("you") == "HELLO YOU"
    assert journal.rollback(["p"]) == []
    assert HERE.greet is before


def test_an_inherited_wrapper_under_another_in_the_parent(journal: Journal) -> None:
    class Parent:
        def method(self) -> str:
            return "m"

    class Kid(Parent):
        pass

    journal.wrap("p", Kid, "method", suffix("p"))
    journal.wrap("p", Parent, "method", suffix("q"))
    assert Kid().method() == "mpq"
    assert Parent().method() == "mq"
    journal.rollback(["p"])
    assert "method" not in vars(Kid)


def test_what_is_gone_is_forgotten(journal: Journal) -> None:
    for _ in range(1000):
        journal.replace("p", Run(), "model", 2)
    assert len(journal.changes("p")) < 200


def test_what_cannot_be_wrapped(journal: Journal) -> None:
    with pytest.raises(AttributeError):
        journal.wrap("p", HERE, "absent", shout)
    with pytest.raises(TypeError, match="not a function"):
        journal.wrap("p", HERE, "HERE_IS_A_NUMBER", shout)
    assert journal.changes("p") == []


HERE_IS_A_NUMBER = 7


@pytest.mark.parametrize("first", ["wrap", "replace"])
def test_what_another_copy_switched_off_under_ours_goes_with_ours(first: str, journal: Journal) -> None:
    target, other = ModuleType("target"), Journal()
    target.greet = greet  # type: ignore[attr-defined]
    other.wrap("theirs", target, "greet", shout)
    if first == "wrap":
        journal.wrap("p", target, "greet", shout)
    else:
        journal.replace("p", target, "greet", len)
    remarks = other.rollback(["theirs"])
    assert len(remarks) == 1, "it could not be taken from under ours"
    assert not journal.rollback(["p"])
    assert target.greet is greet


def test_what_another_copy_has_on_under_ours_stays(journal: Journal) -> None:
    target, other = ModuleType("target"), Journal()
    target.greet = greet  # type: ignore[attr-defined]
    other.wrap("theirs", target, "greet", shout)
    theirs = target.greet
    journal.wrap("p", target, "greet", shout)
    journal.rollback(["p"])
    assert target.greet is theirs
    other.suspend("theirs")
    journal.wrap("p", target, "greet", shout)
    other.resume("theirs")
    assert target.greet("you") == "HELLO YOU"
    journal.rollback(["p"])
    other.rollback(["theirs"])
    assert target.greet is greet


def test_what_others_wrapped_while_we_were_off_is_wrapped_as_it_is(journal: Journal) -> None:
    target = ModuleType("target")
    target.greet = greet  # type: ignore[attr-defined]
    journal.wrap("p", target, "greet", shout)
    journal.suspend("p")

    @functools.wraps(greet)
    def between(who: str) -> str:
        return greet(who) + " and me"

    target.greet = between  # type: ignore[attr-defined]
    journal.ran_again(target)
    journal.resume("p")
    assert target.greet("you") == "HELLO YOU AND ME"
    journal.rollback(["p"])
    assert target.greet is between


def test_what_ran_again_while_we_were_off_is_for_its_own_hook(journal: Journal) -> None:
    target = ModuleType("target")
    target.greet = greet  # type: ignore[attr-defined]
    journal.wrap("p", target, "greet", shout)
    journal.suspend("p")
    anew = target.greet = FunctionType(greet.__code__, greet.__globals__)  # type: ignore[attr-defined]
    journal.ran_again(target)
    journal.resume("p")
    assert target.greet is anew
    assert not journal.changes("p")


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function at home, re-exported, and imported by a script under its name and under another."""
    home, above, script = (ModuleType(name) for name in ("made.home", "made", "script"))
    for module in (home, above, script):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(
        "def save(obj, f=None):\n    return obj\nclass Kind:\n    def one(self): return 1\n    two = one",
        vars(home),
    )
    home.Kind.__module__ = "made.home"
    above.save = script.save = script.keep = home.save  # type: ignore[attr-defined]
    return SimpleNamespace(home=home, above=above, script=script)


@pytest.mark.parametrize("asked", ["home", "above"])
def test_a_function_is_replaced_under_every_name(asked: str, package: Any, journal: Journal) -> None:
    plain = package.home.save
    journal.wrap("p", getattr(package, asked), "save", suffix("!"))
    assert package.home.save is package.above.save is package.script.save is not plain
    assert package.home.save("a") == "a!"
    assert pickle.loads(pickle.dumps(package.above.save)) is package.above.save
    assert package.script.keep is plain, "its own name for it"
    assert journal.rollback(["p"]) == []
    assert package.home.save is package.above.save is package.script.save is plain


def test_two_patches_ask_for_one_function_under_two_names(package: Any, journal: Journal) -> None:
    plain = package.home.save
    journal.wrap("p", package.above, "save", suffix("p"))
    journal.wrap("q", package.home, "save", suffix("q"))
    assert package.home.save is package.above.save
    assert package.above.save("a") == "apq"
    journal.rollback(["p"])
    assert package.home.save is package.above.save
    assert package.above.save("a") == "aq"
    journal.suspend("q")
    assert package.home.save is package.above.save is package.script.save is plain
    journal.resume("q")
    assert package.script.save("a") == "aq"
    journal.rollback(["q"])
    assert package.home.save is package.above.save is package.script.save is plain


def test_what_imports_a_wrapped_function_has_it_too(package: Any, journal: Journal) -> None:
    plain = package.home.save
    journal.wrap("p", package.home, "save", suffix("!"))
    later: Any = ModuleType("later")
    later.save = package.above.save
    journal.suspend("p")
    assert later.save("a") == "a"
    package.script.save = plain
    journal.resume("p")
    assert package.script.save is package.home.save
    journal.rollback(["p"])
    assert package.script.save is plain


def test_another_library_on_one_of_the_names_keeps_its_own(package: Any, journal: Journal) -> None:
    plain = package.home.save
    journal.wrap("p", package.home, "save", suffix("!"))
    ours = package.above.save
    theirs = package.above.save = functools.wraps(ours)(lambda obj, f=None: ours(obj, f) + "?")
    assert package.above.save("a") == "a!?"
    (remark,) = journal.rollback(["p"])
    assert "switched off in place" in remark
    assert package.above.save is theirs
    assert package.above.save("a") == "a?"
    assert package.home.save is plain


def test_a_home_that_ran_again_leaves_no_wrapper_elsewhere(package: Any, journal: Journal) -> None:
    plain = package.home.save
    journal.wrap("p", package.home, "save", suffix("!"))
    package.home.save = FunctionType(plain.__code__, plain.__globals__, "save", plain.__defaults__)
    journal.ran_again(package.home)
    assert package.above.save is package.script.save is plain


def test_under_another_copy_off_and_on_again_no_name_is_forgotten(package: Any, journal: Journal) -> None:
    plain, other = package.home.save, Journal()
    other.wrap("theirs", package.home, "save", suffix("?"))
    journal.wrap("p", package.home, "save", suffix("!"))
    for _ in range(2):
        other.suspend("theirs")
        assert package.above.save("a") == "a!"
        other.resume("theirs")
        assert package.above.save("a") == "a?!"
    journal.rollback(["p"])
    assert package.above.save is package.home.save is package.script.save
    assert package.script.save("a") == "a?"
    assert other.rollback(["theirs"]) == []
    assert package.home.save is package.above.save is package.script.save is plain


@pytest.mark.parametrize("ours_first", [True, False])
def test_a_home_of_two_copies_that_ran_again_leaves_no_wrapper_elsewhere(
    ours_first: bool, package: Any, journal: Journal
) -> None:
    plain, other = package.home.save, Journal()
    other.wrap("theirs", package.home, "save", suffix("?"))
    journal.wrap("p", package.home, "save", suffix("!"))
    package.home.save = FunctionType(plain.__code__, plain.__globals__, "save", plain.__defaults__)
    for each in (journal, other) if ours_first else (other, journal):
        each.ran_again(package.home)
    assert package.above.save is package.script.save is plain


def test_what_a_module_has_of_another_package_is_replaced_there_alone(package: Any, journal: Journal) -> None:
    plain = package.home.save
    journal.wrap("p", package.script, "save", suffix("!"))
    assert (package.script.save("a"), package.above.save) == ("a!", plain)
    assert pickle.loads(pickle.dumps(package.script.save)) is package.script.save
    assert pickle.loads(pickle.dumps(plain)) is plain


def test_a_method_is_replaced_under_every_name_of_its_class(package: Any, journal: Journal) -> None:
    kind = package.home.Kind
    plain = kind.one
    journal.wrap("p", kind, "one", lambda original, self, /: original(self) + 10)
    assert kind.one is kind.two is not plain
    assert pickle.loads(pickle.dumps(kind.one)) is kind.one
    journal.rollback(["p"])
    assert kind.one is kind.two is plain


def test_what_a_class_inherits_stays_the_method_it_was(journal: Journal) -> None:
    names = (Base.method.__module__, Base.method.__qualname__)
    journal.wrap("p", Child, "method", plus_ten)
    journal.wrap("p", Other, "method", plus_ten)
    assert (Child().method(1), Other().method(1), Base().method(1)) == (12, 12, 2)
    assert Child.method is Base.method
    assert (Child.method.__module__, Child.method.__qualname__) == names
    assert pickle.loads(pickle.dumps(Child.method)) is Child.method
    assert journal.changes("p") == [f"wrapped {__name__}.{cls}.method" for cls in ("Child", "Other")]
    journal.rollback(["p"])
    assert (Child().method(1), Other().method(1)) == (2, 2)


def test_what_inherits_from_another_package_has_a_name_of_its_own(journal: Journal) -> None:
    class Script(Base):
        __module__, __qualname__ = __name__, "Script"

    HERE.Script = Script
    try:
        Base.__module__ = "elsewhere"
        journal.wrap("p", Script, "method", plus_ten)
        assert (Script().method(1), Base().method(1)) == (12, 2)
        assert pickle.loads(pickle.dumps(Script.method)) is Script.method
        assert pickle.loads(pickle.dumps(Base.method)) is Base.method
        journal.rollback(["p"])
        assert "method" not in vars(Script)
    finally:
        Base.__module__ = __name__
        del HERE.Script


def test_an_heir_is_not_kept_alive(journal: Journal) -> None:
    class Heir(Base):
        pass

    kept = weakref.ref(Heir)
    journal.wrap("p", Heir, "method", plus_ten)
    assert Heir().method(1) == 12
    del Heir
    gc.collect()
    assert kept() is None
    assert Base().method(1) == 2


def test_an_inherited_class_method_keeps_both_names(journal: Journal) -> None:
    class Kid(Base):
        pass

    for name in ("kind", "__init_subclass__"):
        before = getattr(Kid, name).__module__
        journal.wrap("p", Kid, name, lambda original, cls, /, *args, **kw: original(cls, *args, **kw))
        assert getattr(Kid, name).__module__ == before
    assert Kid.kind.__qualname__ == "Base.kind"
    bound = Child.kind
    journal.wrap("p", Child, "kind", lambda original, cls, x: original(cls, x + 10))
    assert pickle.loads(pickle.dumps(Child.kind))(1) == ("Child", 11)
    assert bound(1) == ("Child", 1)


class Silent:
    """A descriptor that another library put there, whose signature cannot be read from itself."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.__name__ = function.__name__

    def __get__(self, holder: Any, owner: Any = None) -> Any:
        return self.function if holder is None else functools.partial(self.function, holder)

    __call__ = len  # no signature to be read


def test_the_signature_behind_another_librarys_descriptor(journal: Journal) -> None:
    class Target:
        method: Any = Silent(lambda self, value: value)

    class Below(Target):
        pass

    for cls in (Target, Below):
        journal.wrap(
            "p", cls, "method", lambda original, self, /, *args, **kwargs: original(self, *args, **kwargs)
        )
        assert list(inspect.signature(cls().method).parameters) == ["value"]
        assert cls().method(value=1) == cls().method(1) == 1
    journal.rollback(["p"])
    assert isinstance(vars(Target)["method"], Silent)
    assert "method" not in vars(Below)


def test_a_hook_is_held_against_none_of_other_modules(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a mixture of experts: 16,000 hooks, each against all others, took 91 seconds."""
    compared: list[Hooked] = []
    same = Hooked.same

    def counted(self: Hooked, other: Hooked) -> bool:
        compared.append(other)
        return same(self, other)

    monkeypatch.setattr(Hooked, "same", counted)
    modules = [Hookable() for _ in range(300)]
    for module in modules:
        journal.hook("p", module.register, loud)
    assert len(compared) < len(modules)
    journal.hook("p", modules[0].register, loud)
    assert len(modules[0].hooks) == 1
    journal.rollback(["p"])
    assert not any(module.hooks for module in modules)
    journal.hook("p", modules[0].register, loud)
    assert len(modules[0].hooks) == 1


def _own_of(module: str) -> Any:
    """The function of a patch file, as a copy of vlmpatch that has ``module`` reads it."""
    names = {"__name__": module}
    exec("def own(asked):\n    return asked\n", names)
    return names["own"]


@pytest.mark.parametrize("other", ["vlmpatch.patches.x.y", "vendored.vlmpatch.patches.x.y"])
def test_a_function_that_another_copy_has_put_there_stays(other: str) -> None:
    host = ModuleType("host")
    first = _own_of("vlmpatch.patches.x.y")
    Journal().replace("p", host, "own", first)
    with pytest.raises(AlreadyPatched):
        Journal().replace("p", host, "own", _own_of(other))
    assert host.own is first


@pytest.mark.parametrize("other", ["vlmpatch.patches.x.z", "host"])
def test_a_function_of_anybody_else_is_replaced(other: str) -> None:
    host = ModuleType("host")
    host.own = _own_of(other)  # type: ignore[attr-defined]
    value = _own_of("vlmpatch.patches.x.y")
    Journal().replace("p", host, "own", value)
    assert host.own is value


def test_a_copy_of_what_a_patch_has_changed_is_changed_anew() -> None:
    """Of a model that is gone, what a copy of it holds is in no journal."""
    part = SimpleNamespace(own=_own_of("vlmpatch.patches.x.y"))
    value = _own_of("vlmpatch.patches.x.y")
    Journal().replace("p", part, "own", value)
    assert part.own is value
