"""The part of the matrix that runs with every test run; ``make matrix`` runs all of it.

Two stacks, the last transformers 4 and the newest of everything, and one row for each patch that
decides about checkpointing: fails without vlmpatch where the gate is open, right with it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import cells, envs
from tests.lab.envs import Stack
from tests.matrix import judge, rows, store
from vlmpatch.tools.cases import Case

STACKS = ("tf457-ds0182", "tf523-ds0198")
ROWS = (
    "ddp-unused",
    "own-checkpoint-calls",
    "peft-kbit",
    "copied-enable",
    "vision-lora-qwen3-vl",
    "explicit-reentrant",
    "hf-trainer",
    "nonreentrant",
)
Runs = dict[str, cells.Result]


def run_rows(stack: Stack, chosen: list[Case], out: Path) -> tuple[Runs, Runs]:
    wanted = [row.cell for row in chosen]
    references = [cell.reference for cell in wanted]
    bare = cells.run(stack, [*references, *wanted], out / "bare")
    return bare, cells.run(stack, wanted, out / "patched", patched=True, reference=out / "bare")


@pytest.mark.parametrize("name", [STACKS[0], pytest.param(STACKS[1], marks=pytest.mark.slow)])
def test_gates(name: str, tmp_path: Path) -> None:
    stack, known = envs.read_stacks()[name], rows.read()
    chosen = [known[row] for row in ROWS]
    bare, patched = run_rows(stack, chosen, tmp_path)
    entries = store.entries().entries
    found = {
        row.id: judge.faults(
            row,
            entries.get(row.patch),
            rows.versions(stack),
            judge.outcome(bare[row.cell.id]),
            judge.outcome(patched[row.cell.id], row.patch),
        )
        for row in chosen
    }
    assert found == {row.id: [] for row in chosen}
