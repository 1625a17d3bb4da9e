"""A wrapper that meets an object without what it reads has the function called as if it were not there."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from vlmpatch.journal.journal import Journal


class Engine:
    """What a patch wraps: its method needs nothing of the object."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)
        self.calls = 0

    def step(self, other: Any = None) -> str:
        self.calls += 1
        return "stepped"


class Module(Engine):
    """Says itself what it lacks, as ``torch.nn.Module`` does."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def before(wrapped: Any, self: Any, other: Any = None) -> Any:
    return f"{self.groups} {wrapped(self, other)}"


def after(wrapped: Any, self: Any, other: Any = None) -> Any:
    return f"{wrapped(self, other)} {self.groups}"


def helped(wrapped: Any, self: Any, other: Any = None) -> Any:
    groups = _groups(self)
    return f"{groups} {wrapped(self, other)}"


def enclosed(wrapped: Any, self: Any, other: Any = None) -> Any:
    groups = [self.groups]
    return "".join(f"{each} {wrapped(self, other)}" for each in groups)


def asked_of_another(wrapped: Any, self: Any, other: Any = None) -> Any:
    return f"{other.groups} {wrapped(self, other)}"


def in_rounds(wrapped: Any, self: Any, other: Any = None) -> Any:
    done = ""
    for name in ("calls", "groups"):
        getattr(self, name)
        done = wrapped(self, other)
    return done


def of_something_else(wrapped: Any, self: Any, other: Any = None) -> Any:
    return f"{self.optimizer.groups} {wrapped(self, other)}"


def _groups(engine: Any) -> Any:
    return engine.groups


@pytest.fixture
def wrapped(monkeypatch: pytest.MonkeyPatch) -> Any:
    journal = Journal()
    monkeypatch.setattr("vlmpatch.support.log._said", set())

    def wrap(*wrappers: Callable[..., Any]) -> None:
        for at, each in enumerate(wrappers):
            journal.wrap(f"patch-{at}", Engine, "step", each)

    yield wrap
    journal.rollback([f"patch-{at}" for at in range(3)])


@pytest.mark.parametrize("wrapper", [before, helped, enclosed])
@pytest.mark.parametrize("kind", [Engine, Module])
def test_what_lacks_an_attribute_is_stepped_as_without_the_patch(
    wrapper: Callable[..., Any], kind: type[Engine], wrapped: Any, caplog: pytest.LogCaptureFixture
) -> None:
    wrapped(wrapper)
    assert kind(groups=2).step() == "2 stepped"
    assert not caplog.records
    lacking = kind()
    assert [lacking.step(), lacking.step()] == ["stepped", "stepped"]
    assert lacking.calls == 2
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert "[patch-0]" in said.message
    assert f"{kind.__name__} has no attribute 'groups'" in said.message


def test_so_is_a_call_whose_other_argument_lacks_it(wrapped: Any) -> None:
    wrapped(asked_of_another)
    assert Engine().step(other=Engine(groups=2)) == "2 stepped"
    assert Engine().step(Engine()) == Engine().step(other=Engine()) == "stepped"


@pytest.mark.parametrize("wrapper", [after, in_rounds])
def test_nothing_is_called_twice(wrapper: Callable[..., Any], wrapped: Any) -> None:
    wrapped(wrapper)
    engine = Engine()
    with pytest.raises(AttributeError, match="groups"):
        engine.step()
    assert engine.calls == 1


def test_what_a_call_leaves_out_is_no_object_that_lacks_something(wrapped: Any) -> None:
    """One rank's batch may be without it: the others would wait for what that rank no longer does."""
    wrapped(asked_of_another)
    engine = Engine()
    with pytest.raises(AttributeError, match="groups"):
        engine.step(other=None)
    assert engine.calls == 0


def test_a_method_that_wraps_is_not_read_for_what_it_called(wrapped: Any) -> None:
    class Patching:
        def step(self, original: Any, engine: Any, other: Any = None) -> Any:
            return f"{original(engine, other)} {engine.groups}"

    wrapped(Patching().step)
    engine = Engine()
    with pytest.raises(AttributeError, match="groups"):
        engine.step()
    assert engine.calls == 1


def test_an_error_that_no_argument_explains_stays_one(wrapped: Any) -> None:
    wrapped(of_something_else)
    with pytest.raises(AttributeError, match="groups"):
        Engine(optimizer=None).step()


def test_an_error_of_the_function_itself_goes_through_as_it_is(wrapped: Any) -> None:
    class Broken(Engine):
        def step(self, other: Any = None) -> str:
            self.calls += 1
            return str(self.missing)  # type: ignore[attr-defined]

    journal = Journal()
    bare = Broken()
    with pytest.raises(AttributeError, match="missing"):
        bare.step()
    journal.wrap("p", Broken, "step", lambda wrapped, self, other=None: wrapped(self, other))
    broken = Broken()
    with pytest.raises(AttributeError, match="missing") as raised:
        broken.step()
    assert broken.calls == 1
    names = [each.name for each in traceback.extract_tb(raised.value.__traceback__)][1:]
    assert names == ["dispatch", "<lambda>", "step"], "no frame is in it twice"
    assert raised.value.__context__ is None
    journal.rollback(["p"])


def test_the_other_patches_of_a_function_act_all_the_same(wrapped: Any) -> None:
    def around(wrapped: Any, self: Any, other: Any = None) -> Any:
        return f"around {wrapped(self, other)}"

    wrapped(around, before, around)
    assert Engine(groups=2).step() == "around 2 around stepped"
    assert Engine().step() == "around around stepped"


def test_where_the_function_fails_too_its_own_error_is_all_that_is_seen(
    wrapped: Any, caplog: pytest.LogCaptureFixture
) -> None:
    wrapped(before)
    with pytest.raises(TypeError, match="unexpected keyword"):
        Engine().step(unknown=1)  # type: ignore[call-arg]
    assert not caplog.records
