"""Failures of the field, two real ranks each: what they do bare, and that they are right with vlmpatch.

``tests/lab/field.py`` has the scenarios. Each measures itself against the plain run in one process, so a
case needs no more than the error of the bare run: one that users quote, or what was measured to be wrong.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab import cells, envs
from tests.lab.cells import Result
from vlmpatch_lab.cell import Cell

NEWEST, LAST_4, TRL014 = "tf523-ds0198", "tf457-ds0182", "trl014"
TF446, TF447 = "tf446-ds0154", "tf447-ds0169"
WRONG_TOKENS = r"Wrong: a call gave the tokens"
GENERATE_MORE = Cell(trainer="generate_more", checkpointing="nonreentrant")
STALE = r"shapes cannot be multiplied|Sizes of tensors must match"
MASK = r"The shape of the mask \[\d+\] at index 0 does not match the shape of the indexed tensor \[\d+\]"
SIZES = r"The size of tensor a \(\d+\) must match the size of tensor b \(\d+\)"

GENERATE = Cell(trainer="generate", checkpointing="nonreentrant")
IN_STEP = Cell(trainer="generate_in_step", checkpointing="nonreentrant", engine="zero2")
IN_STEP_LLAVA = Cell(trainer="generate_in_step", checkpointing="nonreentrant", kind="llava")

LEAF = r"a view of a leaf Variable that requires grad is being used in an in-place operation"
LEAF_LLAVA = Cell(trainer="leaf", kind="llava", tuning="lora_llm")
LEAF_KBIT = Cell(trainer="leaf", checkpointing="kbit", engine="zero2", tuning="lora_llm")
LEAF_OWN = Cell(trainer="leaf_own_hook", kind="llava", tuning="lora_llm", checkpointing="nonreentrant")

ACCUMULATE = Cell(trainer="accumulate", forwards=4, checkpointing="nonreentrant")
ACCUMULATE_ONE = Cell(trainer="accumulate", forwards=1, checkpointing="nonreentrant")
ACCUMULATE_LLAVA = Cell(trainer="accumulate", forwards=2, kind="llava", checkpointing="nonreentrant")
ACCUMULATE_OLD = Cell(trainer="accumulate_ignored", forwards=2, checkpointing="nonreentrant")
TEXT: dict[str, Any] = {"trainer": "accumulate_text", "forwards": 4, "kind": "llava", "tuning": "full"}
ACCUMULATE_TEXT = Cell(checkpointing="nonreentrant", **TEXT)
ACCUMULATE_TEXT_ZERO2 = Cell(checkpointing="nonreentrant", engine="zero2", **TEXT)
WRONG = r"Wrong: gradients are \S+ off"

METADATA = r"Recomputed values for the following tensors have different metadata"
WRAPPED = Cell(trainer="wrapped", tuning="full", checkpointing="nonreentrant")
WRAPPED_FSDP = Cell(trainer="wrapped", kind="llava", engine="fsdp2", checkpointing="nonreentrant")
WRAPPED_ZERO3 = Cell(trainer="wrapped", tuning="full", engine="zero3", checkpointing="nonreentrant")
OWN_CALLS = Cell(trainer="own_calls", tuning="full", checkpointing="reentrant")
NO_GRADIENT = r"Wrong: \d+ of \d+ parameters have no gradient"
DS_STATE = r"object has no attribute 'ds_grads_remaining'"

OLD_SCRIPT = Cell(trainer="old_script", forwards=2, checkpointing="nonreentrant")
NO_TOKENIZER = r"Trainer.__init__\(\) got an unexpected keyword argument 'tokenizer'"
NO_COUNT = r"compute_loss\(\) got an unexpected keyword argument 'num_items_in_batch'"

KEYWORDS = Cell(trainer="keyword_blocks", kind="llava", engine="none", checkpointing="reentrant")
INTERNVL: dict[str, Any] = {"kind": "internvl_repo", "checkpointing": "nonreentrant"}
OWN_REENTRANT = Cell(trainer="own_reentrant", engine="none", **INTERNVL)

CAUSAL_TASK = Cell(trainer="causal_task", **INTERNVL)
NO_INPUTS = r"has no attribute 'prepare_inputs_for_generation'"

FORCED = Cell(trainer="llamafactory_sft_unused")
READY = r"Expected to mark a variable ready only once"

# Per stack: the cell, and the error of the bare run; None where it is right by itself.
CASES: dict[str, list[tuple[Cell, str | None]]] = {
    NEWEST: [
        (GENERATE, WRONG_TOKENS),
        (IN_STEP_LLAVA, None),
        (LEAF_LLAVA, LEAF),
        (CAUSAL_TASK, NO_INPUTS),
        (OLD_SCRIPT, NO_TOKENIZER),
    ],
    LAST_4: [
        (OLD_SCRIPT, NO_COUNT),
        (CAUSAL_TASK, NO_INPUTS),
        (KEYWORDS, NO_GRADIENT),
        (OWN_REENTRANT, NO_GRADIENT),
        (WRAPPED, METADATA),
        (WRAPPED_FSDP, METADATA),
        (WRAPPED_ZERO3, DS_STATE),
        (OWN_CALLS, NO_GRADIENT),
        (LEAF_LLAVA, LEAF),
        (LEAF_KBIT, LEAF),
        (LEAF_OWN, LEAF),
        (GENERATE, MASK),
        (IN_STEP, MASK),
        (IN_STEP_LLAVA, SIZES),
    ],
}
SLOW: dict[str, list[tuple[Cell, str | None]]] = {
    "tf530-ds0185": [
        (GENERATE_MORE, STALE),
        (ACCUMULATE_TEXT, WRONG),
        (ACCUMULATE_TEXT_ZERO2, None),
    ],
    "llamafactory093": [(FORCED, READY)],
    TF447: [(WRAPPED, METADATA), (ACCUMULATE_LLAVA, WRONG), (ACCUMULATE_TEXT, WRONG)],
    TRL014: [
        (ACCUMULATE, None),
        (ACCUMULATE_LLAVA, WRONG),
        (ACCUMULATE_TEXT, None),
        (ACCUMULATE_TEXT_ZERO2, None),
        (ACCUMULATE_OLD, None),
        (GENERATE, None),
        (IN_STEP, MASK),
        (IN_STEP_LLAVA, SIZES),
    ],
    TF446: [
        (ACCUMULATE, WRONG),
        (ACCUMULATE_ONE, None),
        (ACCUMULATE_LLAVA, WRONG),
        (ACCUMULATE_TEXT, None),
        (ACCUMULATE_TEXT_ZERO2, WRONG),
        (ACCUMULATE_OLD, WRONG),
        (GENERATE, WRONG_TOKENS),
        (IN_STEP_LLAVA, SIZES),
    ],
}


def _parameters() -> list[object]:
    every = [(False, CASES), (True, SLOW)]
    return [
        pytest.param(stack, cell, error, id=f"{stack}:{cell.id}", marks=[pytest.mark.slow] if slow else [])
        for slow, table in every
        for stack, chosen in table.items()
        for cell, error in chosen
    ]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[dict[str, Result], ...]]:
    """For a stack's name: what its cells did bare, and patched."""

    @functools.cache
    def run(name: str) -> tuple[dict[str, Result], ...]:
        stack = envs.read_stacks()[name]
        wanted = [cell for cell, _ in [*CASES.get(name, ()), *SLOW.get(name, ())]]
        measures = [cell.reference for cell in wanted if cell.trainer == FORCED.trainer]
        out: Path = tmp_path_factory.mktemp(name)
        bare = cells.run(stack, [*measures, *wanted], out / "bare")
        return bare, cells.run(stack, wanted, out / "patched", patched=True, reference=out / "bare")

    return run


@pytest.mark.parametrize(("stack", "cell", "error"), _parameters())
def test_field(
    stack: str, cell: Cell, error: str | None, results: Callable[[str], tuple[dict[str, Result], ...]]
) -> None:
    bare, patched = (ran[cell.id] for ran in results(stack))
    assert bare.ok == (error is None), str(bare)
    if error is not None:
        assert re.search(error, bare.error or ""), str(bare)
    assert patched.ok, f"{patched}\n{patched.log[-3000:]}"
    assert patched.between_ranks == 0.0, str(patched)
    assert (patched.difference or 0.0) <= 1e-5, str(patched)  # a framework's cell: to checkpointing off
