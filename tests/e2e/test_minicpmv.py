"""MiniCPM-V's fine-tune script on real stacks, unchanged: what it does with vlmpatch, and without each patch.

The script and the remote code are the stand-in of ``tests/standin``. With ``VLMPATCH_MINICPMV_CODE`` and
``VLMPATCH_MINICPMV_FINETUNE`` naming folders with the real ones, the same tests run on those.
``VLMPATCH_MINICPMV_FULL=1`` runs the whole matrix, which takes an hour; a part of it is the default.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab import envs, launch
from tests.standin import cells

Result = dict[str, Any]
Runs = Callable[[str, bool], dict[str, Result]]
FULL = os.environ.get("VLMPATCH_MINICPMV_FULL") == "1"
TOLERANCE = 1e-5
TF445, TF457, TF523 = "tf445-ds0154", "tf457-ds0182", "tf523-ds0198"
STACKS = (TF445, TF457, TF523)
# What the unchanged script ends in without vlmpatch, on the torch of today.
BARE = {
    TF445: "NameError: name 'List' is not defined",
    TF457: "NameError: name 'Dict' is not defined",
    TF523: "NameError: name 'Dict' is not defined",
}
# A script that says use_reentrant=True keeps it; it then fails where that is known to fail.
REENTRANT = {"zero2": "already been reduced", "ddp": "mark a variable ready only once"}
# Patches that the newer stacks need and the older do not.
NOT_NEEDED = {
    TF445: {
        "minicpmv-missing-post-init",
        "minicpmv-inplace-embeddings",
        "trainer-star-import-names",
        "trainer-tokenizer-argument",
        "trainer-use-apex",
        "trainer-save-safetensors",
        "trainer-training-step-signature",
        "chat-template-dict",
        "renamed-training-flags",
    },
    TF457: {
        "minicpmv-missing-post-init",
        "minicpmv-inplace-embeddings",
        "trainer-tokenizer-argument",
        "trainer-use-apex",
        "trainer-save-safetensors",
        "chat-template-dict",
    },
    TF523: set(),
}
SILENT: dict[str, cells.Cell] = {
    "trainer-self-model-under-ddp": {"engine": "ddp"},
    "trainer-accumulated-gradients": {"engine": "ddp", "accumulate": 2},
    "minicpmv-position-table": {"engine": "zero2", "tuning": "full"},
}


def wanted(stack: str) -> list[cells.Cell]:
    """The matrix, one run without each needed patch, and the silent failures with and without theirs."""
    found = cells.matrix() if FULL else [c for c in cells.matrix() if _in_the_small_matrix(c)]
    found += [c for c in cells.needed() if c["without"][0] not in NOT_NEEDED[stack]]
    found += [{"engine": "ddp", "accumulate": 2, "checkpointing": False}, {"engine": "ddp", "accumulate": 2}]
    found += [{**cell, "without": [name]} for name, cell in SILENT.items()]
    return found


def _in_the_small_matrix(cell: cells.Cell) -> bool:
    return cell["tuning"] in ("lora_vision", "llm_frozen") and (cell["data"], cell["batch"]) == ("many", 1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint, the script and the data; made once, read by every stack."""
    made = tmp_path_factory.mktemp("minicpmv")
    stack = envs.read_stacks()[TF457]
    launch.warm_up(stack)
    cache = {"HF_MODULES_CACHE": str(made / "modules")}
    finished = launch.run(stack, ["python", "-m", "tests.standin.make", made], limit=120, env=cache)
    assert finished.rc == 0, finished
    return made


@pytest.fixture(scope="session")
def runs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """For a stack: every wanted cell's result by id; bare, only one."""

    @functools.cache
    def run(name: str, patched: bool) -> dict[str, Result]:
        stack = envs.read_stacks()[name]
        launch.warm_up(stack)
        out = tmp_path_factory.mktemp(name)
        asked = wanted(name) if patched else [{"engine": "zero2"}]
        (out / "cells.json").write_text(json.dumps(asked))
        command: list[str | Path] = ["python", "-m", "tests.standin.observe", out / "cells.json"]
        command += ["--folder", folder, "--out", out, *(["--patched"] if patched else [])]
        finished = launch.run(
            stack,
            command,
            limit=60 + 40 * len(asked),
            env={"HF_MODULES_CACHE": str(out / "modules")},
            gloo=True,
        )
        assert finished.rc == 0, finished
        lines = [line for line in finished.output.splitlines() if line.startswith('{"cell"')]
        return {result["cell"]: result for result in map(json.loads, lines)}

    return run


def check_right(result: Result) -> None:
    assert result["rc"] == [0, 0], result
    assert result["untrained"] == [], result
    assert result["missing"] == [], result
    assert result["difference"] <= TOLERANCE, result
    assert result["between_ranks"] == 0.0, result
    assert result["same_parameters"], result


@pytest.mark.parametrize("stack", STACKS)
def test_the_script_does_not_run_bare(stack: str, runs: Runs) -> None:
    (result,) = runs(stack, False).values()
    assert any(BARE[stack] in error for error in result["errors"]), result


@pytest.mark.parametrize("engine", cells.ENGINES)
@pytest.mark.parametrize("stack", STACKS)
def test_the_script_trains_rightly(stack: str, engine: str, runs: Runs) -> None:
    done = {name: result for name, result in runs(stack, True).items() if _plain(name, engine)}
    assert done
    for name, result in done.items():
        if name.endswith("-reentrant") and result["rc"] != [0, 0]:
            assert re.search(REENTRANT[engine], " ".join(result["errors"])), result
        else:
            check_right(result)


@pytest.mark.parametrize("stack", STACKS)
def test_zero2_and_zero3_are_the_same_training(stack: str, runs: Runs) -> None:
    """Checkpointing off is the measure of checkpointing on, so it must itself be right, in every step."""
    done = runs(stack, True)
    for name, result in done.items():
        if name.startswith("zero2") and name.endswith("-off"):
            other = done[name.replace("zero2", "zero3")]
            assert other["losses"] == pytest.approx(result["losses"], rel=TOLERANCE), name


@pytest.mark.parametrize("patch", cells.NEEDED)
@pytest.mark.parametrize("stack", STACKS)
def test_each_patch_is_needed(stack: str, patch: str, runs: Runs) -> None:
    if patch in NOT_NEEDED[stack]:
        pytest.skip(f"{stack} does without")
    result = next(r for name, r in runs(stack, True).items() if name.endswith(f"no-{patch}"))
    symptom, _ = cells.NEEDED[patch]
    assert any(re.search(symptom, error) for error in result["errors"]), result


@pytest.mark.parametrize("stack", STACKS)
def test_under_ddp_ranks_part_without_the_patch(stack: str, runs: Runs) -> None:
    result = runs(stack, True)["ddp-lora_vision-many-b1-own-no-trainer-self-model-under-ddp"]
    assert result["rc"] == [0, 0], result
    assert not result["same_parameters"]
    assert result["between_ranks"] > TOLERANCE


@pytest.mark.parametrize("stack", STACKS)
def test_accumulated_gradients_are_divided(stack: str, runs: Runs) -> None:
    done = runs(stack, True)
    check_right(done["ddp-lora_vision-many-b1-own-ga2"])
    without = done["ddp-lora_vision-many-b1-own-ga2-no-trainer-accumulated-gradients"]
    twice = 1.0 if stack != TF445 else 0.0  # before 4.46.1 nothing is wrong
    assert without["difference"] == pytest.approx(twice, abs=1e-4)


def test_positions_are_garbage_without_the_patch(runs: Runs) -> None:
    result = runs(TF523, True)["zero2-full-many-b1-own-no-minicpmv-position-table"]
    right = runs(TF523, True).get("zero2-full-many-b1-own")
    assert result["rc"] == [0, 0], result
    assert right is None or result["losses"] != right["losses"]


def _plain(name: str, engine: str) -> bool:
    return name.startswith(engine) and "-no-" not in name and "-ga" not in name
