"""What parts have missed under ZeRO travels with the checkpoint, and no other way of loading heeds it.

The programs are ``tests.programs.resumed_steps``, started by torchrun.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab import envs, launch

PROGRAM = "tests.programs.resumed_steps"
ENGINES = ("zero1", "zero2", "zero3", "zero3_offload")
# Engines that load a universal checkpoint alike each time; 0.15.4 ends, 0.18.2's ZeRO-1 and ZeRO-2 vary.
STACKS = {"tf445-ds0154": (), "tf457-ds0182": ("zero3", "zero3_offload"), "tf523-ds0198": ENGINES}
OTHERS = ("module-only", "without-states")
CLOSE = 1e-6  # of weights that have moved by a half


class Lab:
    """Runs the program in a stack, for some engines and ways of loading."""

    def __init__(self, stack: str, engines: tuple[str, ...], ways: tuple[str, ...], place: Path) -> None:
        self.stack, self.place = envs.read_stacks()[stack], place
        envs.make(self.stack)
        self.options = ["--engines", ",".join(("ddp", *engines)), "--ways", ",".join(ways)]

    def train(self, deed: str, checkpoints: str, ends: str, *options: str) -> None:
        command: list[str | Path] = ["torchrun", "--nproc_per_node", "2", "-m", PROGRAM, deed]
        self._run([*command, self.place / checkpoints, self.place / ends, *options, *self.options])

    def told(self, deed: str, *places: str) -> dict[str, Any]:
        command: list[str | Path] = ["python", "-m", PROGRAM, deed]
        output = self._run([*command, *(self.place / each for each in places)])
        told: dict[str, Any] = json.loads(output.splitlines()[-1])
        return told

    def _run(self, command: list[str | Path]) -> str:
        env = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}  # DeepSpeed 0.15 on torch 2.6 and later, see F94
        finished = launch.run(self.stack, command, limit=300, env=env, gloo=True, waiting=True)
        assert finished.rc == 0, str(finished)
        return finished.output


def test_a_resumed_training_is_that_of_ddp(tmp_path: Path) -> None:
    engines = ("zero2", "zero3")
    lab = Lab("tf457-ds0182", engines, ("resumed",), tmp_path)
    lab.train("save", "checkpoints", "ends", "--patched")
    lab.train("resume", "checkpoints", "ends", "--patched")
    off = lab.told("apart", "ends", "ends/ddp-whole")
    named = [f"{engine}-{way}" for engine in ("ddp", *engines) for way in ("whole", "resumed")]
    assert {name: off[name] for name in named if off[name] > CLOSE} == {}


@pytest.mark.slow
@pytest.mark.parametrize("stack", STACKS)
def test_what_was_missed_travels_and_nothing_else_heeds_it(stack: str, tmp_path: Path) -> None:
    ways = ("resumed", *OTHERS, *(("universal",) if STACKS[stack] else ()))
    lab = Lab(stack, ENGINES, ways, tmp_path)
    lab.train("save", "checkpoints", "ends", "--patched")
    assert lab.told("strip", "checkpoints", "stripped")["stripped"] >= len(ENGINES)
    for side in ("patched", "bare"):
        options = ["--patched"] if side == "patched" else []
        lab.train("resume", "checkpoints", side, *options)
        lab.train("resume", "stripped", f"{side}-stripped", *options)

    off = lab.told("apart", "ends", "ends/ddp-whole")
    assert {engine: off[f"{engine}-whole"] for engine in ENGINES if off[f"{engine}-whole"] > CLOSE} == {}
    off = lab.told("apart", "patched", "ends/ddp-whole")
    assert {engine: off[f"{engine}-resumed"] for engine in ENGINES if off[f"{engine}-resumed"] > CLOSE} == {}
    for engine in ENGINES:
        off = lab.told("apart", "ends", f"ends/{engine}-saved")
        assert off[f"{engine}-fp32"] == 0.0  # zero_to_fp32.py
    alike = {f"{engine}-{way}" for engine in ENGINES for way in ("resumed", *OTHERS)}
    alike |= {f"{engine}-universal" for engine in STACKS[stack]}
    off = lab.told("apart", "patched", "patched-stripped")
    assert {name for name in alike if off[name]} == {f"{engine}-resumed" for engine in ENGINES}
    off = lab.told("apart", "bare", "bare-stripped")
    assert {name for name in alike if off[name]} == set()
