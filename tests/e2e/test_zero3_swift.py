"""Real ms-swift under ZeRO-3: DPO with LoRA, ``--deepspeed zero3`` and no other flag.

"Right" is the same command with gradient checkpointing off, its ranks forked, by the losses and gradient
norms it prints. gloo's collectives are made to wait, as one CUDA stream does. ``VLMPATCH_FULL=1`` adds
ms-swift 3.4.1, which `make test` runs under DDP and ZeRO-2 (``test_launchers.py``,
``test_minicpmv_launched.py``).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_launchers import LIMIT, PRINTED, RUN, SWIFT, Training, on_forked_ranks
from tests.lab import envs, launch
from tests.standin.cells import FULL
from vlmpatch_lab.ports import free_port

TUNER = {"swift341": "--train_type", "swift360": "--train_type", "swift460": "--tuner_type"}


def dpo(name: str, folder: Path) -> list[str | Path]:
    stack = envs.read_stacks()[name]
    envs.make(stack)
    model = str(launch.checkpoint(stack, "qwen2_vl"))
    words = ["swift", "rlhf", "--rlhf_type", "dpo", TUNER[name], "lora", "--deepspeed", "zero3"]
    words += ["--dataset", "MODEL/data/dpo.jsonl", *SWIFT.split(), "--output_dir", str(folder)]
    return [word.replace("MODEL", model) for word in words]


def start(name: str, folder: Path, before: tuple[str, ...] = RUN) -> Training:
    port = str(free_port())
    env = {"NPROC_PER_NODE": "2", "USE_HF": "1", "MASTER_PORT": port, "PET_MASTER_PORT": port}
    command = [*before, *dpo(name, folder)]
    stack = envs.read_stacks()[name]
    return Training(launch.run(stack, command, limit=LIMIT, env=env, gloo=True, waiting=True), folder)


@pytest.mark.parametrize("stack", TUNER if FULL else ["swift460"])
def test_dpo_trains_as_without_checkpointing(stack: str, tmp_path: Path) -> None:
    trained = start(stack, tmp_path / "on")
    assert trained.finished.rc == 0, str(trained.finished)
    off = [*dpo(stack, tmp_path / "off" / "saved"), "--gradient_checkpointing", "false"]
    measure = on_forked_ranks(envs.read_stacks()[stack], off, tmp_path / "off", {}, gloo=True, waiting=True)
    assert measure.finished.rc == 0, str(measure.finished)
    assert trained.printed() == pytest.approx(measure.printed(), rel=PRINTED)


@pytest.mark.slow
def test_dpo_dies_without_vlmpatch(tmp_path: Path) -> None:
    """On 3.4.1, in DeepSpeed's dropped parameter group; 4.6.0 keeps clear of the failures by itself."""
    bare = start("swift341", tmp_path, before=())
    assert bare.finished.rc != 0, str(bare.finished)
    assert "zip() argument 2 is longer than argument 1" in bare.finished.output
