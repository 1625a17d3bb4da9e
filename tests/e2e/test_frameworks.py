"""Who decides about checkpointing for its users: TRL, one real SFT and one real DPO run, and timm's towers.

Bare and patched. ms-swift, LLaMA-Factory and the newest TRL are rows of the matrix (``make matrix``).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_matrix import run_rows
from tests.lab import envs
from tests.matrix import judge, rows, store

ROWS = {
    "trl024": ("trl-sft", "trl-sft-tokenizer", "trl-dpo", "trl-sft-explicit"),
    "timm0910": ("timm-tower", "timm-tower-ddp", "timm-tower-zero2"),
}


@pytest.mark.parametrize("name", ROWS)
def test_framework(name: str, tmp_path: Path) -> None:
    stack, known = envs.read_stacks()[name], rows.read()
    chosen = [known[row] for row in ROWS[name]]
    bare, patched = run_rows(stack, chosen, tmp_path)
    entries = store.entries().entries
    for row in chosen:
        outcomes = (judge.outcome(bare[row.cell.id]), judge.outcome(patched[row.cell.id]))
        assert judge.faults(row, entries[row.patch], rows.versions(stack), *outcomes) == []
