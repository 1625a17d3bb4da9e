"""HF Trainer by torchrun, models whose decoder blocks share the encoder's states: F36, bare and ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import envs, launch
from tests.lab.launch import Finished
from tests.lab.outcomes import TOLERANCE
from vlmpatch_lab.ports import free_port

STACK = "tf457-ds0182"
LIMIT = 300.0  # seconds; a run takes 10


def trained(model: str, *options: str | Path) -> Finished:
    words = ["torchrun", "--nproc_per_node", "2", "--master_port", str(free_port())]
    program = "tests/programs/train_cross_attention.py"
    return launch.run(envs.read_stacks()[STACK], [*words, program, "--model", model, *options], limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["whisper", "mllama"])
def test_blocks_that_share_the_encoders_states(model: str, tmp_path: Path) -> None:
    envs.make(envs.read_stacks()[STACK])
    outputs, right = ("--output_dir", tmp_path / "out"), tmp_path / "right.pt"
    measured = trained(model, *outputs, "--no-checkpointing", "--save", right)
    assert measured.rc == 0, str(measured)

    bare = trained(model, *outputs)
    assert bare.rc != 0, str(bare)
    assert "Trying to backward through the graph a second time" in bare.output, str(bare)

    patched = trained(model, *outputs, "--import-vlmpatch", "--measure", right)
    assert patched.rc == 0, str(patched)
    (said,) = [line for line in patched.output.splitlines() if line.startswith("apart ")]
    assert float(said.split()[1]) <= TOLERANCE, str(patched)
