"""What hangs on a model is as it was after a call of it; what could not be is refused before."""

from __future__ import annotations

import functools
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from types import SimpleNamespace as Thing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmpatch.watch.untouched import CannotUndo, Snapshot

VALUES = st.recursive(
    st.integers() | st.text(max_size=3) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4), st.data())
def test_whatever_changes_is_put_back(attributes: dict[str, Any], data: Any) -> None:
    thing = Thing(**attributes)
    text, containers = repr(vars(thing)), found(vars(thing))
    before = Snapshot([thing])
    for container in containers:
        change: Callable[[], object] = data.draw(
            st.sampled_from([container.clear, functools.partial(grow, container), lambda: None])
        )
        change()
    thing.new = 1
    before.undo()
    assert repr(vars(thing)) == text
    assert [id(each) for each in found(vars(thing))] == [id(each) for each in containers]


def found(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    own = [value] if isinstance(value, dict | list) else []
    return own + [each for item in inner for each in found(item)]


def grow(container: Any) -> None:
    if isinstance(container, dict):
        container["grown"] = 0
    else:
        container.insert(0, "grown")


def test_order_and_kind_stay() -> None:
    thing = Thing(last=deque([1, 2], maxlen=2), seen={1}, by_name=OrderedDict(a=1, b=2))
    before = Snapshot([thing])
    thing.last.append(3)
    thing.seen.add(2)
    thing.by_name.move_to_end("a")
    before.undo()
    assert (thing.last, thing.seen) == (deque([1, 2], maxlen=2), {1})
    assert list(thing.by_name) == ["a", "b"]


def test_a_hooks_own_variables_are_put_back() -> None:
    calls, rows = 0, list[int]()

    def hook() -> int:
        nonlocal calls
        calls += 1
        rows.append(calls)
        return calls

    before = Snapshot([{"hooks": {0: functools.partial(hook)}}])
    hook()
    before.undo()
    assert (hook(), rows) == (1, [1])


def test_a_generator_draws_again() -> None:
    thing = Thing(own=random.Random(3))
    before = Snapshot([[thing]])
    drawn = thing.own.random()
    before.undo()
    assert thing.own.random() == drawn


def test_things_that_hold_each_other() -> None:
    one, other = Thing(), Thing()
    one.other, other.one = other, one
    before = Snapshot([one])
    other.one = None
    before.undo()
    assert other.one is one


def test_an_iterator_is_refused() -> None:
    with pytest.raises(CannotUndo, match="list_iterator"):
        Snapshot([Thing(rows=iter([1]))])
