"""A newcomer's path: a run dies, ``explain`` says which one line to add, the same run trains.

Everything is the user's own: the launcher, the script, the log. Only what ``explain`` prints is followed.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.lab import envs, launch
from vlmpatch_lab.ports import free_port

STACK = "tf457-ds0182"
SCRIPT = Path(__file__).parents[1] / "programs" / "train_hf.py"
LIMIT = 300.0


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "forwards", "failure"), [("ddp", "1", "F3"), ("zero2", "2", "F1")])
def test_from_a_traceback_to_a_running_job(engine: str, forwards: str, failure: str, tmp_path: Path) -> None:
    stack = envs.read_stacks()[STACK]
    model = launch.checkpoint(stack, "qwen2_vl")

    def train(before: list[str]) -> launch.Finished:
        command = ["torchrun", "--nproc_per_node", "2", "--master_port", str(free_port()), str(SCRIPT)]
        command += ["--engine", engine, "--forwards", forwards, "--model", str(model)]
        return launch.run(stack, [*before, *command], limit=LIMIT, gloo=engine == "zero2")

    died = train([])
    assert died.rc != 0
    log = tmp_path / "train.log"
    log.write_text(died.output)
    explained = launch.run(stack, ["python", "-m", "vlmpatch", "explain", "--json", str(log)], limit=60)
    assert explained.rc == 0, explained.output
    answer = json.loads(explained.output)
    assert answer["failure"] == failure
    assert answer["active"] is False
    assert "applies" in {patch["verdict"] for patch in answer["patches"]}

    advised = next(line for line in answer["do"] if " run " in line)
    before = [*shlex.split(advised.partition(" run ")[0]), "run"]
    trained = train(before)
    assert trained.rc == 0, trained.output[-3000:]
    assert re.search(r"'loss': '?[\d.]+", trained.output)
