"""What is done with a ZeRO-3 model outside the engine's forward, bare and patched, on two real ranks.

Values are compared with the same thing made without ZeRO-3; ``tests.lab.outside`` holds the programs.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.lab import envs, launch

SIZE_MISMATCH = "the shape in current model is torch.Size([0])"
TRANSPOSED = "the shape in current model is torch.Size([8, "
EMPTY = "copying a param with shape torch.Size([0]) from checkpoint"
OUT_OF_BOUNDS = "index 0 is out of bounds for dimension 0 with size 0"
LAST4 = "tf457-ds0182"


class Expected(NamedTuple):
    """How one case ends without vlmpatch (an error's words, or a key whose value is wrong) and with it."""

    case: str
    bare: str
    patched: str = ""  # words of the clear error, where there is one


CASES: dict[str, list[Expected]] = {
    LAST4: [
        Expected("made-from-scratch", OUT_OF_BOUNDS),
        Expected("made-with-a-new-head", "garbage"),
        Expected("loaded-gemma3", OUT_OF_BOUNDS),
        Expected("loaded-in-a-constructor", SIZE_MISMATCH),
        Expected("loaded-afterwards", SIZE_MISMATCH),
        Expected("called-before-the-engine", "weight should have at least three dimensions"),
        Expected("weights-used-before-the-engine", "weight should have at least three dimensions"),
        Expected("called-on-one-rank", "weight should have", "Sequential, outside the engine, was called"),
        Expected("trained-without-an-engine", "weight should have", "Start the script with torchrun"),
        Expected("saved-by-the-script", EMPTY),
        Expected("saved-by-the-script-saying-who-writes", EMPTY),
        Expected("saved-on-one-rank", EMPTY, "save_pretrained of BertForSequenceClassification was called"),
        Expected("adapter-saved-by-the-script", EMPTY),
        Expected("adapter-saved-on-one-rank", EMPTY, "saving the adapter of PeftModel was called on rank 0"),
        Expected("tokens-added-to-a-frozen-model", "differing"),
        Expected("adapter-of-weights-delora-qwen2_5_vl", "differing"),
        Expected("adapter-of-weights-experts-qwen3_vl_moe", "tuple index out of range"),
        Expected("adapter-of-weights-ln-qwen2_5_vl", "AssertionError"),
        Expected("adapter-of-weights-loha-qwen2_5_vl", "tuple index out of range"),
        Expected("adapter-of-weights-osf-qwen2_5_vl", "optimizer got an empty parameter list"),
        Expected("gathered-dtypes", "invalid tensor type at index 0"),
        Expected("state-dict-saved", "differing"),
        Expected("trainer-ignoring", EMPTY),
        Expected("trainer-callback", EMPTY),
        Expected("trainer-callback-on-one-rank", EMPTY, "was called on rank 0 and not on rank 1"),
        Expected("loaded-on-one-rank", SIZE_MISMATCH, "load_state_dict of Sequential was called on rank 0"),
    ],
    "tf449-ds0164": [
        Expected("own-zero-init-qwen2_5_vl", SIZE_MISMATCH),
        Expected("loaded-in-a-constructor", SIZE_MISMATCH),
    ],
    "trl024": [  # the same releases; what takes longer
        Expected("trainer-adapter-ungathered", "ds_grads_remaining"),
        Expected("trainer-adapter-ignoring", "ds_grads_remaining"),
    ],
    "peft082": [
        Expected("modules-to-save-of-a-partitioned-model", "AssertionError: {'id'"),
        Expected("adapter-saved-by-the-script", EMPTY),
        Expected("adapter-saved-on-one-rank", EMPTY, "saving the adapter of PeftModel was called on rank 0"),
    ],
    envs.NEWEST: [
        Expected("loaded-qwen3_vl_moe", TRANSPOSED),
        Expected("loaded-fused-projections", "split_sizes=[0, 0, 0]"),
        Expected("adapter-of-weights-delora-qwen2_5_vl", "differing"),
        Expected("adapter-of-weights-ln-qwen2_5_vl", "AssertionError"),
        Expected("adapter-of-weights-loha-qwen2_5_vl", "tuple index out of range"),
        Expected("adapter-of-weights-osf-qwen2_5_vl", "optimizer got an empty parameter list"),
    ],
    "tf500-ds0192": [
        Expected("made-from-scratch", OUT_OF_BOUNDS),
        Expected("loaded-gemma3", "Fan in and fan out can not be computed"),
    ],
}
INNOCENT = [
    "trainer",
    "trainer-ignoring-ungathered",
    "adapter-put-in-later",
    "empty-tensors-of-users",
    "loaded-by-who-gathers",
    "resumed",
    "loaded-qwen2_5_vl",
    "asked-by-one-rank-qwen2_5_vl",
]
SLOW = {stack: [] if stack == LAST4 else [pytest.mark.slow] for stack in CASES}
Found = Callable[[str, bool, str], dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each case of a stack did; all of them share one process, bare and patched one each."""

    @functools.cache
    def of_stack(name: str, patched: bool) -> dict[str, Any]:
        cases = [expected.case for expected in CASES[name]] + (INNOCENT if name == LAST4 else [])
        return perform(name, cases, tmp_path_factory.mktemp(name), patched=patched)

    return lambda stack, patched, case: of_stack(stack, patched)[case]


def perform(
    name: str, cases: Sequence[str], out: Path, *, patched: bool, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What each case did, one process for all of them."""
    stack = envs.read_stacks()[name]
    envs.make(stack)
    kinds = {case.split("-")[-1] for case in cases} & {"gemma3", "qwen2_5_vl", "qwen3_vl_moe"}
    models = launch.checkpoints(stack, sorted(kinds))
    named = [word for kind, folder in models.items() for word in ("--model", f"{kind}={folder}")]
    command = ["python", "-m", "tests.lab.outside", "--out", str(out), *named, *cases]
    command += ["--patched"] if patched else []
    finished = launch.run(stack, command, limit=560, gloo=True, env=env)
    assert finished.rc == 0, str(finished)
    lines = [line for line in finished.output.splitlines() if line.startswith('{"case"')]
    return {report["case"]: report for report in map(json.loads, lines)}


def wrong(rank: dict[str, Any]) -> list[str]:
    found = [f"error: {rank['error']}"] if "error" in rank else []
    found += [f"differing: {rank['differing']}"] if rank.get("differing") else []
    found += ["left whole"] if rank.get("partitioned") is False else []
    # What is drawn at random differs; NaN is neither near 1 nor far from it.
    found += [f"head: {rank['head']}"] if "head" in rank and not 0.5 < rank["head"] < 2 else []
    found += ["bias"] if rank.get("bias", 0) != 0 else []
    return found


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        pytest.param(stack, expected, id=f"{stack}-{expected.case}", marks=SLOW[stack])
        for stack, all_of in CASES.items()
        for expected in all_of
    ],
)
def test_fails_bare_and_is_right_or_told_patched(found: Found, stack: str, expected: Expected) -> None:
    bare = found(stack, False, expected.case)["ranks"]
    if expected.bare in ("garbage", "differing"):
        assert all(wrong(rank) and "error" not in rank for rank in bare)
    else:
        assert any(expected.bare in rank.get("error", "") for rank in bare), bare
    patched = found(stack, True, expected.case)
    assert not patched["hung"]  # nobody waits for minutes: a case has one
    if expected.patched:
        assert any(expected.patched in rank["error"] for rank in patched["ranks"]), patched
    else:
        assert [wrong(rank) for rank in patched["ranks"]] == [[], []]


@pytest.mark.parametrize("case", INNOCENT)
def test_what_was_right_stays_right(found: Found, case: str) -> None:
    for patched in (False, True):
        assert [wrong(rank) for rank in found(LAST4, patched, case)["ranks"]] == [[], []]
