"""The pieces of a flat partition that take a step, and their counts of steps."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches.deepspeed import zero_step_without_gradient
from patches.deepspeed.zero_step_without_gradient import SAVED, History, Part, shard_of
from vlmpatch.api import Patch
from vlmpatch.journal.journal import Journal
from vlmpatch.support import log

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=6)


def parts_of(sizes: list[int]) -> list[Part]:
    return [Part(sum(sizes[:number]), size) for number, size in enumerate(sizes)]


@given(SIZES, st.integers(0, 3), st.lists(st.sets(st.integers(0, 5)), max_size=5), st.sets(st.integers(0, 5)))
def test_pieces_are_all_but_the_idle_each_with_the_steps_it_missed(
    sizes: list[int], padding: int, earlier: list[set[int]], now: set[int]
) -> None:
    parts = parts_of(sizes)
    history = History()
    for step in earlier:
        history.add([part for number, part in enumerate(parts) if number in step], begun=True)
    idle = [part for number, part in enumerate(parts) if number in now]
    missed = [sum(number in step for step in earlier) for number in range(len(parts))]
    expected = {
        place: missed[number]
        for number, part in enumerate(parts)
        if number not in now
        for place in range(part.start, part.start + part.size)
    }
    size = sum(sizes) + padding
    expected |= dict.fromkeys(range(sum(sizes), size), 0)

    found = [
        (place, count)
        for piece, count, _ in history.pieces(size, idle)
        for place in range(piece.start, piece.start + piece.size)
    ]

    assert found == sorted(expected.items())


def test_what_never_had_a_gradient_has_no_state_until_it_takes_a_step() -> None:
    first, second = parts_of([2, 3])
    history = History()
    history.add([second], begun=False)
    history.add([first, second], begun=True)

    assert list(history.pieces(5, [])) == [(first, 1, True), (second, 2, False)]


def test_a_partition_of_which_all_were_always_used_is_one_piece() -> None:
    assert list(History().pieces(7, [])) == [(Part(0, 7), 0, True)]


@pytest.mark.parametrize(("numbers", "ranks"), [(15, 2), (16, 2), (3, 2), (1, 2), (5, 4), (2, 4)])
def test_what_fills_up_the_last_partition_is_no_part_of_a_parameter(
    numbers: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = -(-numbers // ranks)
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace(get_rank=lambda group: group))

    shards = [shard_of(SimpleNamespace(ds_process_group=r, ds_numel=numbers), 7, size) for r in range(ranks)]

    assert all(shard.start == 7 and 0 <= shard.size <= size for shard in shards)
    assert sum(shard.size for shard in shards) == numbers


# --- saved and loaded -----------------------------------------------------------------------------------

RANK, RANKS, SIZE = 1, 2, 9
HELD = SimpleNamespace(numel=lambda: SIZE)  # a partition
FIRST, SECOND = [Part(0, 2)], [Part(4, 3)]
File = dict[str, Any]


@pytest.fixture(params=[False, True], ids=["stages-1-and-2", "stage-3"])
def optimizers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type:
    """A class of optimizers of two partitions, which saves nothing and drops what it has loaded."""
    ranked = SimpleNamespace(get_rank=lambda group: RANK)
    monkeypatch.setitem(sys.modules, "torch.distributed", ranked)
    held = "fp32_partitioned_groups_flat" if request.param else "single_partition_of_fp32_groups"

    class Optimizer:
        dp_process_group = "all"

        def __init__(self) -> None:
            setattr(self, held, [HELD, HELD])

        def _optimizer_step(self, group: int) -> None: ...

        def step(self) -> None: ...

        def state_dict(self) -> File:
            return {"zero_stage": 2}

        def load_state_dict(
            self,
            state_dict_list: list[File] | None,
            load_optimizer_states: bool = True,
            load_from_fp32_weights: bool = False,
            checkpoint_folder: str | None = None,
        ) -> str:
            if state_dict_list is not None:
                del state_dict_list[RANK]
            return "loaded"

    module = ModuleType("stages")
    name = "DeepSpeedZeroOptimizer_Stage3" if request.param else "DeepSpeedZeroOptimizer"
    setattr(module, name, Optimizer)
    zero_step_without_gradient.apply(Patch("p", Journal()), module)
    return Optimizer


def missing(optimizer: Any) -> dict[int, History]:
    """The histories of an optimizer of which parts have missed steps."""
    history = History()
    history.add(FIRST, begun=False)
    history.add([*FIRST, *SECOND], begun=True)
    history.counted(5.0)
    histories = {0: History(), 1: history}
    zero_step_without_gradient._histories[optimizer] = histories
    return histories


def found(optimizer: Any) -> dict[int, dict[str, Any]]:
    histories = zero_step_without_gradient._histories.get(optimizer, {})
    return {group: vars(history) for group, history in histories.items()}


def files(own: File) -> list[File]:
    return [{}, own]


def test_what_was_missed_comes_back_with_the_state(optimizers: type) -> None:
    before = optimizers()
    missed = vars(missing(before)[1])
    saved = before.state_dict()
    assert json.loads(saved.pop(SAVED))["1"]["size"] == SIZE
    assert saved == {"zero_stage": 2}

    after = optimizers()
    assert after.load_state_dict(files(before.state_dict())) == "loaded"
    assert found(after) == {1: missed}
    again = optimizers()
    again.load_state_dict(state_dict_list=files(after.state_dict()), load_optimizer_states=True)
    assert found(again) == {1: missed}


def test_where_nothing_was_missed_nothing_is_added(optimizers: type) -> None:
    optimizer = optimizers()
    assert optimizer.state_dict() == {"zero_stage": 2}
    zero_step_without_gradient._histories[optimizer] = {0: History()}
    assert optimizer.state_dict() == {"zero_stage": 2}


def test_a_checkpoint_without_it_leaves_none(optimizers: type) -> None:
    optimizer = optimizers()
    missing(optimizer)
    optimizer.load_state_dict(files({"zero_stage": 2}))
    assert found(optimizer) == {}


@pytest.mark.parametrize("said", [(False,), (True, False, "universal")])
def test_where_no_state_is_loaded_from_it_nothing_changes(optimizers: type, said: tuple[Any, ...]) -> None:
    """Without optimizer states, and from a universal checkpoint, of which the next step sees the count."""
    saved, optimizer = optimizers(), optimizers()
    missing(saved)
    kept = missing(optimizer)
    optimizer.load_state_dict(files(saved.state_dict()), *said)
    assert zero_step_without_gradient._histories[optimizer] is kept


def test_a_partition_of_another_size_has_missed_nothing(optimizers: type) -> None:
    before, after = optimizers(), optimizers()
    missing(before)
    told = json.loads(before.state_dict()[SAVED])
    told["1"]["size"] += 1
    after.load_state_dict(files({SAVED: json.dumps(told)}))
    assert found(after) == {}


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"1": 5}', '{"1": {"size": SIZE}}', b"{"])
def test_what_cannot_be_read_is_told_and_ends_nothing(
    optimizers: type, text: object, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_said", set())
    optimizer = optimizers()
    missing(optimizer)
    assert optimizer.load_state_dict(files({SAVED: text})) == "loaded"
    assert found(optimizer) == {}
    (said,) = caplog.messages
    assert f"{SAVED} in this rank's optimizer states cannot be read" in said


def test_what_cannot_be_loaded_is_the_hosts_to_say(optimizers: type) -> None:
    optimizer = optimizers()
    kept = missing(optimizer)
    with pytest.raises(IndexError, match="assignment index out of range"):
        optimizer.load_state_dict([{}])
    assert zero_step_without_gradient._histories[optimizer] is kept
    assert optimizer.load_state_dict(None) == "loaded"
