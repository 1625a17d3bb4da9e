"""The pieces of a flat partition that take a step, and their counts of steps."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches.deepspeed.zero_step_without_gradient import History, Part, shard_of

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
