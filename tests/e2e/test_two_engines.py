"""A tower in two engines: what DeepSpeed refuses is refused with vlmpatch too, in words that say why."""

from __future__ import annotations

import pytest

from tests.lab import envs, launch

STACK = "tf457-ds0182"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "has already been reduced"),
        (["--patched"], "[zero-uneven-gradients]: a gradient was taken away before ZeRO had reduced it"),
    ],
    ids=["bare", "patched"],
)
def test_a_tower_in_two_engines_is_refused(options: list[str], words: str) -> None:
    stack = envs.read_stacks()[STACK]
    envs.make(stack)
    command = ["python", "-m", "tests.mishaps.two_engines", *options]
    finished = launch.run(stack, command, limit=120.0, gloo=True)
    ended = [line for line in finished.output.splitlines() if line.startswith("ended: ")]
    assert len(ended) == 1, finished
    assert words in ended[0]
