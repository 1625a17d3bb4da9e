"""Backwards after the one that DDP's reducer waits for: what stays on its rank bare is averaged patched."""

from __future__ import annotations

import pytest

from tests.lab import envs, launch

PROGRAM = ["torchrun", "--nproc_per_node", "2", "-m", "tests.programs.second_backwards"]
BARE = {
    "forwards-then-backwards": "wrong",
    "kept-graph": "wrong",
    "second-reaches-less": "wrong",
    "accumulated": "wrong",
    "searched-alike": "wrong",
    "searched-less": "ends: Expected to mark a variable ready only once",
}
RIGHT = (
    *("one-forward-one-backward", "a-part-each", "averaged-by-hand-as-well", "a-gradient-of-the-input"),
    *(
        "a-gradient-of-the-input-first",
        "expected-by-hand",
        "second-in-no-sync",
        "on-one-rank",
        "after-one-rank",
    ),
)


@pytest.mark.parametrize(
    "name",
    ["tf457-ds0182", *(pytest.param(name, marks=pytest.mark.slow) for name in ("torch241", "torch2150"))],
)
def test_each_backward_is_averaged_where_every_rank_runs_it(name: str) -> None:
    stack = envs.read_stacks()[name]
    envs.make(stack)
    bare = words(stack)
    assert set(bare) == {*BARE, *RIGHT}
    for case, word in bare.items():
        assert word.startswith(BARE.get(case, "right")), f"{case}: {word}"
    patched = words(stack, "--patched")
    assert patched == dict.fromkeys(bare, "right")


def words(stack: envs.Stack, *options: str) -> dict[str, str]:
    """What each case comes to."""
    finished = launch.run(stack, [*PROGRAM, *options], limit=240, gloo=True)
    assert finished.rc == 0, str(finished)
    lines = [line.partition(" ") for line in finished.output.splitlines()]
    return {case: word for case, _, word in lines if case in BARE or case in RIGHT}
