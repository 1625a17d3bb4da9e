"""ZeRO's gradients over several steps, held against the same samples in one process without an engine.

Gradients of every step and what the steps made of the parameters. The comparison with the same engine
without checkpointing sees none of these failures.
"""

from __future__ import annotations

import functools
import importlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.lab import cells, envs
from tests.lab.cells import Result
from vlmpatch.gate.source import Unrecognised, of_file
from vlmpatch_lab.cell import Cell

GRADIENTS, PARAMETERS = 1e-5, 1e-3  # relative; float32, and steps divide by a gradient's size
LOW = 0.3  # relative, of 16 bits against float32
BOTH = TF457, TF523 = "tf457-ds0182", "tf523-ds0198"
OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
# Releases whose ZeRO-3 ends where a step calls other modules than the one before it.
ENDS_BY_ITSELF = ("tf445-ds0145",)


@dataclass(frozen=True)
class Case:
    """A cell and what it does bare: "error", "wrong" or "right"; by stack where they differ."""

    cell: Cell
    bare: str
    on: tuple[tuple[str, str], ...] = ()
    stacks: tuple[str, ...] = BOTH

    def without(self, stack: str) -> str:
        return dict(self.on).get(stack, self.bare)


def zero(stage: int, pattern: str, accumulation: int = 1, **more: Any) -> Cell:
    fields: dict[str, Any] = {"tuning": "full", "compared": 3, **more}
    return Cell(engine=f"zero{stage}", pattern=pattern, accumulation=accumulation, **fields)


PAST = "past-the-engine"
TWICE: dict[str, Any] = {"forwards": 2, "scenario": "two-backwards"}
CASES = {
    "F16": Case(zero(2, "alternating"), "error"),
    "F16, LoRA, ZeRO-1": Case(zero(1, "one-rank-text", tuning="lora", checkpointing="nonreentrant"), "error"),
    "F16 in silence": Case(zero(2, "alternating", scenario="dummy-first"), "wrong"),
    "F17": Case(zero(3, "text-step"), "wrong"),
    "F17, a window's end, offload": Case(zero(3, "text-last", 2, zero=OFFLOAD), "wrong"),
    "F17, ZeRO-2, offload": Case(zero(2, "text-step", zero=OFFLOAD), "wrong"),
    "F18": Case(zero(2, "images", 2), "wrong", ((TF523, "right"),)),
    # DeepSpeed 0.18.2 knows no backward but its engine's.
    "F18, past the engine": Case(zero(2, "images", 2, scenario=PAST), "wrong", stacks=(TF523,)),
    "F18, the first of two past the engine": Case(
        zero(1, "images", forwards=2, scenario=f"first-{PAST}"), "wrong", stacks=(TF523,)
    ),
    "F18, two backwards, offload": Case(zero(2, "images", zero=OFFLOAD, **TWICE), "wrong"),
}
each_case = pytest.mark.parametrize(
    ("name", "stack"), [(name, stack) for name, case in CASES.items() for stack in case.stacks]
)
both_stacks = pytest.mark.parametrize("stack", BOTH)
Runs = Callable[[str], tuple[dict[str, Result], dict[str, Result]]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """For a stack's name: its cases bare, and patched."""

    @functools.cache
    def run(name: str) -> tuple[dict[str, Result], dict[str, Result]]:
        stack, out = envs.read_stacks()[name], tmp_path_factory.mktemp(name)
        wanted = [case.cell for case in CASES.values() if name in case.stacks]
        bare = cells.run(stack, cells.with_references(wanted), out / "bare")
        return bare, fixed(stack, wanted, out)

    return run


def fixed(stack: envs.Stack, wanted: list[Cell], out: Path) -> dict[str, Result]:
    """``wanted`` with vlmpatch, but without what hides these failures in models that it knows."""
    # Checkpoints hold what torch loads no more since 2.6; DeepSpeed of that time says nothing about it.
    env = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    found: dict[str, Result] = {}
    for number, (off, cells_of) in enumerate(without(stack, wanted).items()):
        told = {**env, "VLMPATCH_DISABLE": off}
        place = out / f"patched{number}"
        found |= cells.run(stack, cells_of, place, patched=True, reference=out / "bare", env=told)
    return found


def without(stack: envs.Stack, wanted: list[Cell]) -> dict[str, list[Cell]]:
    """``wanted`` by the patch that is switched off for them."""
    by_patch: dict[str, list[Cell]] = {}
    for cell in wanted:
        ends = stack.name in ENDS_BY_ITSELF and cell.engine == "zero3"
        by_patch.setdefault("" if ends else "batches-without-images", []).append(cell)
    return by_patch


def right(result: Result, gradients: float = GRADIENTS, parameters: float = PARAMETERS) -> bool:
    found = (result.difference, result.parameters)
    if not result.ok or result.missing or None in found or result.between_ranks != 0.0:
        return False
    return found[0] <= gradients and found[1] <= parameters  # type: ignore[operator]


@each_case
def test_gradients_are_those_of_plain_data_parallel(name: str, stack: str, runs: Runs) -> None:
    bare, patched = runs(stack)
    case = CASES[name]
    without = bare[case.cell.id]
    did = "error" if not without.ok else "right" if right(without) else "wrong"
    assert did == case.without(stack), f"bare: {without}\n{without.log[-2000:]}"
    result = patched[case.cell.id]
    assert right(result), f"{result}\n{result.log[-4000:]}"
    assert len(set(result.digests)) == 1, "ranks hold different parameters"


# --- everything a user may set: slow ----------------------------------------------------------------

OLDER = ("tf445-ds0145", "tf445-ds0154", "tf447-ds0169", "tf454-ds0175", "tf456-ds0176")
ALL = (*OLDER, TF457, "tf500-ds0192", "tf522-ds0193", TF523)
WITHOUT_NO_SYNC = ("tf445-ds0145", "tf445-ds0154")  # the engine's own came with 0.16
SMALL = {"reduce_bucket_size": 3000}  # some parameters are larger than a bucket
FLAT: dict[str, dict[str, Any]] = {
    "defaults": {},
    "overlap": {"overlap_comm": True},
    "overlap, small buckets": {"overlap_comm": True, **SMALL},
    "small buckets": SMALL,
    "not contiguous": {"contiguous_gradients": False},
    "not contiguous, overlap, small": {"contiguous_gradients": False, "overlap_comm": True, **SMALL},
    "no reduce-scatter": {"reduce_scatter": False},
    "one rank a bucket": {"use_multi_rank_bucket_allreduce": False},
    "offload": OFFLOAD,
    "offload, small buckets": {**OFFLOAD, **SMALL},
}
STAGE3: dict[str, dict[str, Any]] = {
    "defaults": {},
    "overlap, small buckets": {"overlap_comm": True, **SMALL},
    "not contiguous": {"contiguous_gradients": False},
    "no reduce-scatter": {"reduce_scatter": False},
    "offload": OFFLOAD,
    "offload both": {**OFFLOAD, "offload_param": {"device": "cpu"}},
    "small sub-groups": {"sub_group_size": 3000},
    "offload, small sub-groups": {**OFFLOAD, "sub_group_size": 3000},
}
CLIPPED = {"gradient_clipping": 0.05}
ROUND_ROBIN = {"round_robin_gradients": True}
HALF = {"fp16": {"enabled": True, "initial_scale_power": 6}}  # the scale changes with what overflows


def sweep() -> Iterator[Cell]:
    """Every setting in some window: no test of ours for the product of all."""
    for setting in FLAT.values():
        yield zero(1, "alternating", 2, zero=setting)
        yield zero(2, "alternating", zero=setting)
        yield zero(2, "text-last", 2, zero=setting)
    for name in ("defaults", "overlap, small buckets", "offload"):
        yield zero(2, "alternating", 4, zero=FLAT[name], tuning="lora", checkpointing="nonreentrant")
        yield zero(2, "text-first", 2, zero=FLAT[name], config=CLIPPED)
        yield zero(2, "alternating", 2, zero=FLAT[name], scenario="resume")
        yield zero(2, "one-rank-text", zero=FLAT[name], scenario="extra", optimizer="sgd")
        yield zero(2, "alternating", zero=FLAT[name], scenario="dummy-first")
        yield zero(2, "text-last", 2, zero=FLAT[name], scenario="resume-within")
        yield from half(2, FLAT[name])
    yield zero(1, "images", 3, zero=OFFLOAD)
    yield zero(2, "images", 4, zero=OFFLOAD)
    for stage, accumulation in ((1, 1), (1, 2), (2, 1), (2, 3)):
        yield zero(stage, "images", accumulation, zero=OFFLOAD, config=CLIPPED, **TWICE)
    for setting in (ROUND_ROBIN, {**ROUND_ROBIN, "overlap_comm": True, **SMALL}, {**ROUND_ROBIN, **OFFLOAD}):
        yield zero(2, "alternating", 2, zero=setting)
        yield zero(2, "text-step", zero=setting)
    yield from half(1, {})
    yield zero(1, "one-rank-text", 2, scenario="no_sync")
    yield zero(2, "alternating", scenario="frozen")
    yield zero(2, "alternating", 2, dtype="bfloat16", optimizer="sgd")
    for setting in STAGE3.values():
        for pattern, accumulation in (("text-step", 1), ("text-first", 2), ("text-last", 2)):
            yield zero(3, pattern, accumulation, zero=setting)
    for name in ("defaults", "offload"):
        yield zero(3, "text-step", 4, zero=STAGE3[name], tuning="lora", checkpointing="nonreentrant")
        yield zero(3, "text-step", 2, zero=STAGE3[name], config=CLIPPED)
        yield zero(3, "text-step", 2, zero=STAGE3[name], scenario="resume")
        yield zero(3, "images", zero=STAGE3[name], scenario="extra", optimizer="sgd")
        yield zero(3, "text-last", 2, zero=STAGE3[name], scenario="resume-within")
        yield from half(3, STAGE3[name])
    yield zero(3, "text-step", 2, dtype="bfloat16", optimizer="sgd")


def half(stage: int, setting: dict[str, Any]) -> Iterator[Cell]:
    """fp16 with a loss scale, and a first step that overflows, after which some parameters get nothing."""
    later = "text-last" if stage == 3 else "alternating"
    for pattern, accumulation, more in (("text-step", 1, {}), (later, 4, CLIPPED)):
        for scenario in ("", "overflow"):
            config = {**HALF, **more}
            fields = {"dtype": "float16", "optimizer": "sgd", "scenario": scenario, "config": config}
            yield zero(stage, pattern, accumulation, zero=setting, **fields)


def holds(cell: Cell, result: Result) -> bool:
    """Whether a cell of the sweep is right by what can be read of it."""
    low = LOW if cell.dtype != "float32" else None
    # Gradients of fp16 are scaled; those of round robin were not read.
    if cell.dtype == "float16" or "round_robin_gradients" in cell.zero:
        found = result.parameters
        return (
            result.ok and len(set(result.digests)) == 1 and found is not None and found <= (low or PARAMETERS)
        )
    return right(result, low or GRADIENTS, low or PARAMETERS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_every_setting_of_every_release(name: str, tmp_path: Path) -> None:
    stack = envs.read_stacks()[name]
    wanted = [cell for cell in sweep() if cell.scenario != "no_sync" or name not in WITHOUT_NO_SYNC]
    cells.run(stack, [cell.reference for cell in wanted], tmp_path / "bare")
    found = fixed(stack, wanted, tmp_path)
    wrong = [str(found[cell.id]) for cell in wanted if not holds(cell, found[cell.id])]
    assert not wrong, "\n".join(wrong)


# --- nobody else is touched -------------------------------------------------------------------------


@both_stacks
def test_even_gradients_are_the_same_bit_for_bit(stack: str, runs: Runs) -> None:
    """Ranks whose gradients all arrive, in one order: what DeepSpeed does by itself."""
    cell = CASES["F18"].cell
    bare, patched = runs(stack)
    if CASES["F18"].without(stack) == "right":
        assert bare[cell.id].digests == patched[cell.id].digests


DEPENDS_ON = {  # patch, the file it looks at, something its functions say
    "zero_uneven_gradients": ("stage_1_and_2", "self.params_already_reduced"),
    "zero3_stale_gradients": ("stage3", "self.micro_step_id == 0"),
}


@both_stacks
@pytest.mark.parametrize("name", DEPENDS_ON)
def test_a_release_that_changes_these_functions_is_declined(name: str, stack: str, tmp_path: Path) -> None:
    (folder,) = envs.read_stacks()[stack].folder.glob("lib/python*/site-packages/deepspeed/runtime/zero")
    patch = importlib.import_module(f"vlmpatch.patches.deepspeed.{name}")
    file, line = DEPENDS_ON[name]
    assert patch.look(of_file(file, str(folder / f"{file}.py"))) is None
    shutil.copytree(folder, tmp_path / "zero")
    changed = tmp_path / "zero" / f"{file}.py"
    changed.write_text(changed.read_text().replace(line, "self.something_else"))
    with pytest.raises(Unrecognised, match="not as any known release"):
        patch.look(of_file(file, str(changed)))


@pytest.mark.parametrize("name", ["zero2_lost_micro_batches", "zero2_offload_lost_micro_batches"])
def test_releases_without_the_lost_micro_batches_are_left_alone(name: str) -> None:
    patch = importlib.import_module(f"vlmpatch.patches.deepspeed.{name}")
    stacks = envs.read_stacks()
    for stack, needed in ((TF457, True), (TF523, False)):
        (file,) = stacks[stack].folder.glob(
            "lib/python*/site-packages/deepspeed/runtime/zero/stage_1_and_2.py"
        )
        assert (patch.look(of_file("stage_1_and_2", str(file))) is None) == needed


def test_a_case_says_what_its_measure_is() -> None:
    for case in CASES.values():
        measure = case.cell.reference
        assert (measure.engine, measure.ranks) == ("plain", 1)
        assert replace(measure, engine="zero2").reference == measure
