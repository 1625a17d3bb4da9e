"""How ranks whose wrappers call different parts come to run the same ones in the same order."""

from __future__ import annotations

import copy
import importlib
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmpatch.api import Argument, Patch
from vlmpatch.journal.journal import Journal

patch: Any = importlib.import_module("vlmpatch.patches.transformers.wrapper_calls_on_every_rank")

PARTS = 4
CALLS = st.lists(st.integers(1, PARTS), max_size=5)


class Wrapper:
    """A module that a wrapper is, and who watches it."""

    def __init__(self) -> None:
        self.watchers: list[Any] = []


class Watcher:
    """In place of what watches a wrapper; its hooks keep it."""

    def __init__(self, handle: Patch, module: Wrapper) -> None:
        self.patch = handle
        module.watchers.append(self)

    def calls_of(self, modules: list[Wrapper]) -> None:
        """It watches from the beginning."""


def test_a_wrapper_is_watched_once_and_anew_after_an_undo(monkeypatch: pytest.MonkeyPatch) -> None:
    class Offload:
        def __init__(self, module: Wrapper) -> None:
            self.module = module

    monkeypatch.setattr(patch, "_Wrapper", Watcher)
    monkeypatch.setattr(patch, "wrapper_in", lambda module: module)
    monkeypatch.setattr(patch, "called_as", lambda wrapper, module: [module])
    journal, wrapper = Journal(), Wrapper()
    for times in (1, 2):
        handle = Patch("p", journal)
        patch._wrap_to_find(handle, Offload, "__init__", Argument(0, "module"))
        Offload(wrapper), Offload(module=wrapper)
        assert len(wrapper.watchers) == times, "an undo has taken the hooks of the former away"
        journal.rollback(["p"])


class Hooked:
    """A module that keeps the hooks it is given."""

    def __init__(self) -> None:
        self.hooks: list[Any] = []

    def register_forward_pre_hook(self, hook: Any, **_: Any) -> Any:
        self.hooks.append(hook)
        return SimpleNamespace(remove=lambda: None)

    register_forward_hook = register_forward_pre_hook


def test_what_calls_the_forward_is_hooked_once_and_a_copy_is_not_taken_for_it() -> None:
    journal, tuner = Journal(), Hooked()
    wrapper = patch._Wrapper.__new__(patch._Wrapper)
    wrapper.patch, wrapper.called_as = Patch("p", journal), []
    wrapper.calls_of([tuner])
    wrapper.calls_of([tuner])
    assert len(tuner.hooks) == 2
    assert wrapper.is_called_as(tuner)
    assert [known() for known in copy.deepcopy(wrapper.called_as)] == [tuner]
    assert not wrapper.is_called_as(Hooked())


def test_words_are_embedded_where_other_ranks_give_embeddings() -> None:
    class Language:
        def get_input_embeddings(self) -> Any:
            return lambda words: f"embedded {words}"

    language = Language()
    wrapper = patch._Wrapper.__new__(patch._Wrapper)
    called: list[Any] = []

    def tell(part: Any, args: Any, kwargs: Any) -> None:
        called.append((args, kwargs))
        wrapper.forward.inside = part

    def given(*args: Any, differed: bool = True, **kwargs: Any) -> Any:
        nothing = {"tied": lambda *_: None, "differed": differed, "inside": None}
        wrapper.forward = SimpleNamespace(**nothing)
        called.clear()
        return wrapper.before(language, args, kwargs)

    wrapper.towers, wrapper.module, wrapper.called = {0}, lambda: None, tell
    embedded = {"inputs_embeds": "embedded words"}
    assert given("words", "mask", labels=1) == ((None, "mask"), {"labels": 1, **embedded})
    assert len(called) == 2, "ranks agree once more, for one has embedded words meanwhile"
    assert given(input_ids="words") == ((), {"input_ids": None, **embedded})
    assert given(inputs_embeds="seen") == ((), {"inputs_embeds": "seen"})
    assert len(called) == 2
    assert given("words", differed=False) is None
    assert len(called) == 1


class Group:
    """Ranks that wait for one another, as threads."""

    def __init__(self, size: int) -> None:
        self.said: list[list[int]] = []
        self.found: list[int] = []
        self.barrier = threading.Barrier(size, action=self._settle, timeout=10)

    def largest_of_each(self, values: list[int], groups: Any, device: Any) -> list[int]:
        self.said.append(values)
        self.barrier.wait()
        return self.found

    def _settle(self) -> None:
        self.found = [max(column) for column in zip(*self.said, strict=True)]
        self.said = []


class Rank(patch._Forward):  # type: ignore[misc]
    """One forward of a wrapper that calls parts by their places."""

    def __init__(self, group: Group, tells: bool) -> None:
        super().__init__(SimpleNamespace(off=False, parts=[*range(1, PARTS + 1)]), [group], None)
        self.group, self.tells = group, tells
        self.ran: list[int] = []
        self.own: list[int] = []

    def _told(self, call: Any) -> bytes | None:
        (there,) = self.group.largest_of_each([int(call is not None and self.tells)], [], None)
        return b"call" if there else None

    def _stand_in(self, part: int, told: bytes) -> None:
        self.ran.append(part)

    def run(self, calls: list[int]) -> None:
        for place in calls:
            self.agree(place, "call")
            self.ran.append(place)
            self.own.append(place)
        self.agree(patch._END, None)


def forwards(calls: list[list[int]], tells: bool = True) -> list[Rank]:
    group = Group(len(calls))
    ranks = [Rank(group, tells) for _ in calls]
    with pytest.MonkeyPatch.context() as swapped:
        swapped.setattr(patch, "largest_of_each", group.largest_of_each)
        threads = [
            threading.Thread(target=rank.run, args=(own,)) for rank, own in zip(ranks, calls, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return ranks


@given(st.lists(CALLS, min_size=2, max_size=3))
def test_every_rank_runs_the_same_and_its_own_in_their_order(calls: list[list[int]]) -> None:
    ranks = forwards(calls)
    assert [rank.own for rank in ranks] == calls
    assert all(rank.ran == ranks[0].ran for rank in ranks)


@given(CALLS)
def test_ranks_that_call_alike_stand_in_for_nobody(calls: list[int]) -> None:
    ranks = forwards([calls, calls])
    assert [(rank.ran, rank.kept) for rank in ranks] == [(calls, False)] * 2


def test_a_call_that_cannot_be_told_ends_it_on_every_rank() -> None:
    ranks = forwards([[1], []], tells=False)
    assert [(rank.ran, rank.wrapper.off) for rank in ranks] == [([1], True), ([], True)]


def test_a_language_model_of_others_is_given_what_leads_to_the_towers() -> None:
    class Forward:
        def __init__(self, inside: Any, found: list[str]) -> None:
            self.inside, self.found, self.differed = inside, found, False

        def tied(self, _: Any, value: Any) -> Any:
            return None if value is None or not self.found else (value, *self.found)

        def clear(self) -> None:
            self.found = []

    tower, language = object(), object()
    wrapper = patch._Wrapper.__new__(patch._Wrapper)
    wrapper.towers, wrapper.module, wrapper.called = {id(tower)}, lambda: None, lambda *_: None

    def given(to: Any, **kwargs: Any) -> Any:
        wrapper.forward = Forward(patch._Part(to), ["tower"])
        return wrapper.before(to, ("mask",), kwargs), wrapper.forward.found

    assert given(language, inputs_embeds="words") == ((("mask",), {"inputs_embeds": ("words", "tower")}), [])
    assert given(language) == (None, ["tower"])
    assert given(tower, inputs_embeds="words") == (None, ["tower"])
    wrapper.towers = set()
    assert given(language, inputs_embeds="words") == (None, ["tower"])
