"""A wrapper takes every call that its target takes, or it is refused when it is put on."""

from __future__ import annotations

import functools
import inspect
import sys
import traceback
from types import ModuleType
from typing import Any

import pytest

from vlmpatch.api import signature
from vlmpatch.journal.journal import Journal, WrongSignature


def save(obj: Any, f: Any, pickle_protocol: int = 2, *, new: bool = True) -> Any:
    return obj, f, pickle_protocol, new


def anything(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def options(first: int, **others: Any) -> Any:
    return first, others


class Model:
    def load(self, state: Any, strict: bool = True) -> Any:
        return self, state, strict

    @staticmethod
    def static(x: int) -> int:
        return x

    @classmethod
    def kind(cls, x: int) -> int:
        return x


RIGHT: list[Any] = [
    (save, lambda original, /, *args, **kwargs: 0),
    (save, lambda original, obj, f, pickle_protocol=2, *, new=True: 0),
    (save, lambda original, obj, *args, **kwargs: 0),
    (save, lambda original, obj, *args, new=True, **kwargs: 0),
    (anything, lambda original, /, *args, **kwargs: 0),
    (options, lambda original, /, first, **others: 0),
    (max, lambda original, /, *args, **kwargs: 0),
    (len, lambda original, obj, /: 0),
]
WRONG: list[Any] = [
    (save, lambda original, what, *args, **kwargs: 0, "names what where that has obj"),
    (save, lambda original, f, *args, **kwargs: 0, "names f where that has obj"),
    (save, lambda original, obj, /, *args, **kwargs: 0, "obj is positional-only, where"),
    (save, lambda original, obj, f, pickle_protocol=3, **kwargs: 0, "default of pickle_protocol"),
    (save, lambda original, obj, f=None, *args, **kwargs: 0, "default of f"),
    (save, lambda original, obj, f, pickle_protocol, **kwargs: 0, "default of pickle_protocol"),
    (save, lambda original, obj, *args: 0, "f cannot be passed by name"),
    (save, lambda original, *args: 0, "obj cannot be passed by name"),
    (save, lambda original, obj, **kwargs: 0, "f cannot be passed by position"),
    (save, lambda original, *args, obj, **kwargs: 0, "obj is keyword-only"),
    (save, lambda *, original, **kwargs: 0, "takes no target"),
    (anything, lambda original, *args, **kwargs: 0, "original= would be taken"),
    (anything, lambda original, /, obj, *args, **kwargs: 0, r"names obj where that has \*args"),
    (options, lambda original, first, **others: 0, "original= would be taken"),
    (max, lambda original, /, iterable, *args, **kwargs: 0, "names iterable"),
]


@pytest.mark.parametrize(("target", "wrapper"), RIGHT)
def test_what_takes_every_call_is_put_on(target: Any, wrapper: Any) -> None:
    module: Any = ModuleType("target")
    module.f = target
    Journal().wrap("p", module, "f", wrapper)
    assert module.f is not target


@pytest.mark.parametrize(("target", "wrapper", "why"), WRONG)
def test_what_does_not_is_refused(target: Any, wrapper: Any, why: str) -> None:
    module: Any = ModuleType("target")
    module.f = target
    journal = Journal()
    with pytest.raises(WrongSignature, match=rf"test_signatures\.<lambda> .* target\.f: .*{why}"):
        journal.wrap("p", module, "f", wrapper)
    assert module.f is target
    assert journal.changes("p") == []


@pytest.mark.parametrize(
    ("name", "wrapper", "why"),
    [
        ("load", lambda original, self, /, *args, **kwargs: 0, ""),
        ("load", lambda original, this, /, state, *args, **kwargs: 0, ""),
        ("load", lambda original, self, state, strict=True: 0, ""),
        ("load", lambda original, /, *args, **kwargs: 0, ""),
        ("load", lambda original, self, sd, *args, **kwargs: 0, "names sd where that has state"),
        ("load", lambda original, strict, /, state, **kwargs: 0, "strict cannot be passed by position"),
        ("static", lambda original, x: 0, ""),
        ("static", lambda original, self, x: 0, "names self where that has x"),
        ("kind", lambda original, cls, x: 0, ""),
        ("kind", lambda original, cls, /, y: 0, "names y where that has x"),
    ],
)
def test_what_a_method_is_called_on_is_no_argument(name: str, wrapper: Any, why: str) -> None:
    journal = Journal()
    if why:
        with pytest.raises(WrongSignature, match=why):
            journal.wrap("p", Model, name, wrapper)
    else:
        journal.wrap("p", Model, name, wrapper)
    journal.rollback(["p"])


def test_what_a_decorator_wraps_is_what_counts() -> None:
    module: Any = ModuleType("target")
    module.f = functools.wraps(save)(lambda *args, **kwargs: save(*args, **kwargs))
    journal = Journal()
    with pytest.raises(WrongSignature):
        journal.wrap("p", module, "f", lambda original, what, *args, **kwargs: 0)
    journal.wrap("p", module, "f", lambda original, obj, *args, **kwargs: original(obj, *args, **kwargs))
    assert module.f(obj=1, f=2) == (1, 2, 2, True)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="up to 3.13 such a def is an error of its own")
def test_an_annotation_that_only_type_checkers_can_read_is_no_error() -> None:
    class Script:
        step: Any

    text = "def step(self, inputs: Missing, count: int = 1) -> Missing: return inputs, count"
    said: dict[str, Any] = {}
    exec(compile(text, "script.py", "exec", dont_inherit=True), {}, said)
    Script.step = said["step"]
    with pytest.raises(NameError):
        inspect.signature(Script.step)
    assert list(signature(Script.step).parameters) == ["self", "inputs", "count"]
    journal = Journal()
    journal.wrap("p", Script, "step", lambda original, self, /, *args, **kwargs: original(self, *args))
    assert Script().step(3) == (3, 1)
    assert signature(Script.step).parameters["count"].annotation is int
    journal.rollback(["p"])


def test_the_code_of_a_wrapped_function_names_what_the_targets_does() -> None:
    """Scripts leave out of a batch what ``model.forward.__code__.co_varnames`` does not name."""
    owner = ModuleType("owner")

    def plain(self: Any, x: int = 1, *rest: Any, kwargs: int = 2, **others: Any) -> Any:
        inside = (self, x, rest, kwargs, others)
        return inside

    vars(owner).update(plain=plain, save=save, length=len)
    journal, wrapped = Journal(), lambda original, /, *args, **kwargs: original(*args, **kwargs)
    for name in ("plain", "save", "length"):
        journal.wrap("p", owner, name, wrapped)
    asked = ("self", "x", "rest", "kwargs", "others", "args", "wrapper", "original", "new")
    assert owner.plain(0, 5, 6, kwargs=7, other=8) == (0, 5, (6,), 7, {"other": 8})
    assert [name in owner.plain.__code__.co_varnames for name in asked] == [
        name in plain.__code__.co_varnames for name in asked
    ]
    assert [name for name in asked if name in owner.save.__code__.co_varnames] == ["new"]
    assert owner.length([1, 2]) == 2
    assert owner.save(1, 2, new=False) == (1, 2, 2, False)


def test_a_traceback_shows_the_lines_that_call() -> None:
    """Their code is the one that is written there, with other names."""
    owner = ModuleType("owner")

    def fails(reason: str) -> None:
        raise ValueError(reason)

    vars(owner).update(fails=fails)
    Journal().wrap("p", owner, "fails", lambda original, /, *args, **kwargs: original(*args, **kwargs))
    with pytest.raises(ValueError, match="of its own") as raised:
        owner.fails("of its own")
    frames = traceback.extract_tb(raised.value.__traceback__)
    line = next(frame.line for frame in frames if frame.filename.endswith("dispatching.py"))
    assert line == "return __wrapper(__below, *__args, **__kwargs)"
