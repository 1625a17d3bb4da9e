"""Real ms-swift 4.6.0, supervised, on rows of which every third has no image: ZeRO-2 and DDP.

Its template for Qwen2-VL runs the tower on a picture of its own where a batch has none, so it trains without
us: with us it prints the same, and what DDP prints. Rows are taken in their order.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.test_launchers import LIMIT, ON_CPU, PRINTED, RUN, SWIFT, Training
from tests.lab import envs, launch
from vlmpatch_lab.ports import free_port

pytestmark = pytest.mark.slow
STACK = "swift460"
IN_ORDER = "--dataset_shuffle false --train_dataloader_shuffle false"
ENGINES = {
    "ddp": f"--ddp_find_unused_parameters true {ON_CPU}",
    "zero2": "--deepspeed zero2",
}


def mixed_rows(model: Path, folder: Path) -> Path:
    rows = [json.loads(line) for line in (model / "data" / "sft.jsonl").read_text().splitlines()]
    for row in rows[1::3]:
        row["messages"][0]["content"] = row["messages"][0]["content"].removeprefix("<image>")
        row["images"] = []
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mixed.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def train(engine: str, folder: Path, *, patched: bool) -> Training:
    stack = envs.read_stacks()[STACK]
    envs.make(stack)
    model = launch.checkpoint(stack, "qwen2_vl")
    rows = mixed_rows(model, folder)
    words = f"swift sft --tuner_type lora --dataset {rows} {ENGINES[engine]} {IN_ORDER} {SWIFT}".split()
    command = [*(RUN if patched else ()), *(word.replace("MODEL", str(model)) for word in words)]
    port = str(free_port())
    env = {"NPROC_PER_NODE": "2", "USE_HF": "1", "MASTER_PORT": port, "PET_MASTER_PORT": port}
    out = folder / "out"
    command += ["--output_dir", str(out), "--max_steps", "4"]
    alone = engine == "ddp"  # which needs no accelerator to be answered for
    return Training(launch.run(stack, command, limit=LIMIT, env=env, gloo=not alone, waiting=not alone), out)


def test_mixed_rows_print_what_ddp_prints(tmp_path: Path) -> None:
    runs = {
        "ddp": train("ddp", tmp_path / "ddp", patched=True),
        "bare": train("zero2", tmp_path / "bare", patched=False),
        "patched": train("zero2", tmp_path / "patched", patched=True),
    }
    for run in runs.values():
        assert run.finished.rc == 0, str(run.finished)
    printed = {name: run.printed() for name, run in runs.items()}
    assert printed["patched"] == pytest.approx(printed["bare"], rel=PRINTED)
    assert printed["patched"] == pytest.approx(printed["ddp"], rel=PRINTED), printed
