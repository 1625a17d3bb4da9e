"""Who decides about checkpointing for its users: TRL, real SFT, DPO and GRPO runs, and timm's towers.

Bare and patched. ms-swift, LLaMA-Factory and the newest TRL are rows of the matrix (``make matrix``).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_launchers import RUN
from tests.e2e.test_matrix import run_rows
from tests.lab import envs, launch
from tests.lab.launch import Finished
from tests.matrix import judge, rows, store
from vlmpatch_lab.ports import free_port

ROWS = {
    "trl024": ("trl-sft", "trl-sft-tokenizer", "trl-dpo", "trl-sft-explicit"),
    "timm0910": ("timm-tower", "timm-tower-ddp", "timm-tower-zero2"),
}


@pytest.mark.parametrize("name", ["trl024", pytest.param("timm0910", marks=pytest.mark.slow)])
def test_framework(name: str, tmp_path: Path) -> None:
    stack, known = envs.read_stacks()[name], rows.read()
    chosen = [known[row] for row in ROWS[name]]
    bare, patched = run_rows(stack, chosen, tmp_path)
    entries = store.entries().entries
    for row in chosen:
        outcomes = (judge.outcome(bare[row.cell.id]), judge.outcome(patched[row.cell.id], row.patch))
        assert judge.faults(row, entries[row.patch], rows.versions(stack), *outcomes) == []


@pytest.mark.slow
def test_grpo_by_torchrun(tmp_path: Path) -> None:
    """TRL's own GRPO, which generates with checkpointing on: the answers are those without (F30)."""
    stack = envs.read_stacks()["trl021"]
    envs.make(stack)
    model = launch.checkpoint(stack, "qwen2_vl")

    def run(name: str, *before: str, after: tuple[str, ...] = ()) -> tuple[Finished, list[Any]]:
        torchrun = ["torchrun", "--nproc_per_node", "2", f"--master_port={free_port()}"]
        script = ["tests/programs/train_grpo.py", "--model", str(model), "--output_dir", str(tmp_path / name)]
        finished = launch.run(stack, [*before, *torchrun, *script, *after], limit=200)
        return finished, [json.loads(path.read_text()) for path in sorted((tmp_path / name).glob("rank*"))]

    bare, _ = run("bare")
    assert bare.rc != 0, str(bare)
    assert re.search(r"The shape of the mask \[\d+\] at index 0 does not match", bare.output), str(bare)
    off, right = run("off", after=("--no-checkpointing",))
    assert off.rc == 0, str(off)
    patched, found = run("patched", *RUN)
    assert patched.rc == 0, str(patched)
    assert [len(rank["completions"]) for rank in right] == [4, 4], right
    assert [rank["completions"] for rank in found] == [rank["completions"] for rank in right]
    assert printed(patched) == pytest.approx(printed(off), rel=1e-5)
    # Both stacks of blocks, after each of the two steps; none where nobody asked for it.
    assert all(len(rank["checkpointed"]) == 2 and min(rank["checkpointed"]) > 0 for rank in found), found
    assert all(rank["checkpointed"] == [0, 0] for rank in right), right


def printed(finished: Finished) -> list[float]:
    """The gradient norm of every step."""
    found = re.findall(r"'grad_norm': ([\d.e+-]+)", finished.output)
    assert len(found) == 2, str(finished)
    return [float(value) for value in found]
