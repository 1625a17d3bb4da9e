"""Real ms-swift 4.6.0, full tuning, on rows of which every third has no image: ZeRO-2, ZeRO-3 and DDP.

Its template for LLaVA leaves the tower out where a batch has no image, so ZeRO ends or is wrong without us.
The one for Qwen2-VL runs the tower on a picture of its own there and trains without us: with us it prints the
same. What is right is what DDP prints that looks for unused parameters. Rows are taken in their order. It is
not LoRA, which begins with other random numbers under ZeRO-3.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.test_launchers import LIMIT, ON_CPU, PRINTED, RUN, SWIFT, Training, close
from tests.lab import envs, launch
from vlmpatch_lab.ports import free_port

pytestmark = pytest.mark.slow
STACK = "swift460"
IN_ORDER = "--dataset_shuffle false --train_dataloader_shuffle false"
ENGINES = {
    "ddp": f"--ddp_find_unused_parameters true {ON_CPU}",
    "zero2": "--deepspeed zero2",
    "zero3": "--deepspeed zero3",
}
MODELS = {"llava1_5_hf": "llava_files", "qwen2_vl": "qwen2_vl"}  # by ms-swift's name, ours
OWN_IMAGE = ("qwen2_vl",)
HANGS = 120.0  # seconds after which a bare run has ended for us
Train = Callable[..., Training]


def mixed_rows(model: Path, folder: Path) -> Path:
    """The checkpoint's rows, a third of them without their image."""
    rows = [json.loads(line) for line in (model / "data" / "sft.jsonl").read_text().splitlines()]
    for row in rows[1::3]:
        row["messages"][0]["content"] = row["messages"][0]["content"].removeprefix("<image>")
        row["images"] = []
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mixed.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Run ms-swift once on a model under an engine."""

    @functools.cache
    def run(kind: str, engine: str, *, patched: bool) -> Training:
        stack, folder = envs.read_stacks()[STACK], tmp_path_factory.mktemp("mixed")
        envs.make(stack)
        model = launch.checkpoint(stack, MODELS[kind])
        rows, said = mixed_rows(model, folder), SWIFT.replace("qwen2_vl", kind)
        words = f"swift sft --tuner_type full --dataset {rows} {ENGINES[engine]} {IN_ORDER} {said}".split()
        command = [*(RUN if patched else ()), *(word.replace("MODEL", str(model)) for word in words)]
        command += ["--output_dir", str(folder / "out"), "--max_steps", "4"]
        port, alone = str(free_port()), engine == "ddp"  # which needs no accelerator to be answered for
        env = {"NPROC_PER_NODE": "2", "USE_HF": "1", "MASTER_PORT": port, "PET_MASTER_PORT": port}
        limit = LIMIT if patched or kind in OWN_IMAGE else HANGS
        finished = launch.run(stack, command, limit=limit, env=env, gloo=not alone, waiting=not alone)
        return Training(finished, folder / "out")

    return run


@pytest.mark.parametrize("engine", ["zero2", "zero3"])
@pytest.mark.parametrize("kind", MODELS)
def test_mixed_rows_print_what_ddp_prints(kind: str, engine: str, train: Train) -> None:
    right = train(kind, "ddp", patched=True)
    bare, patched = (train(kind, engine, patched=how) for how in (False, True))
    for run in (right, patched):
        assert run.finished.rc == 0, str(run.finished)
    assert patched.printed() == pytest.approx(right.printed(), rel=PRINTED)
    holds = bare.finished.rc == 0 and close(bare.printed(), right.printed())
    assert holds == (kind in OWN_IMAGE), str(bare.finished)
