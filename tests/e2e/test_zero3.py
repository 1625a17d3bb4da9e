"""ZeRO-3 on real ranks: gradients, gathers, and that nothing stays gathered after a backward.

Every gradient is measured twice: those of the first step against plain autograd without DeepSpeed,
those of every step against the same run with checkpointing off. Bare runs show what is fixed.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.zero3_runs import NOTHING_AHEAD, Run
from tests.lab import envs, launch
from vlmpatch.gate.source import Unrecognised, of_file

EXACT = 1e-5
# Gather calls a step: the first block's frozen layers are recomputed although their backward is empty,
# in the vision tower and in the language model, however deep they are.
FIRST_BLOCK = 4
# Elements of the patch embedding. From transformers 5 on enable_input_require_grads(), which goes with
# checkpointing, lets its output require grad, so that DeepSpeed gathers it for a backward.
HOOKED = {"tf523-ds0198": 3 * 2 * 8 * 8 * 32}
FULL = os.environ.get("VLMPATCH_FULL") == "1"
STACKS = {
    "tf445-ds0154": "qwen2_vl",  # Qwen2.5-VL came with transformers 4.49
    **({"tf447-ds0169": "qwen2_vl"} if FULL else {}),
    "tf457-ds0182": "qwen2_5_vl",
    "tf523-ds0198": "qwen2_5_vl",
}
HANGS_ON = tuple(STACKS) if FULL else ("tf457-ds0182",)
EVERYWHERE = ("plain", "two forwards")  # what each tuning and each failure needs
BROKE_TO_SAVE = {"tf447-ds0169", "tf457-ds0182"}  # DeepSpeed 0.16.5 to 0.19.2
ENDED_F4 = {"tf523-ds0198"}  # DeepSpeed 0.19.3 fixed the crash, not the third gather
TORCH_STYLE = {"tf523-ds0198"}  # loss.backward() instead of engine.backward(loss)
# DeepSpeed itself cannot run backward twice over one graph there, checkpointing or not.
NO_SECOND_BACKWARD = {"tf523-ds0198"}
SMALL_BUCKETS = {**NOTHING_AHEAD, "reduce_bucket_size": 1}
AHEAD = {
    "stage3_max_live_parameters": 100_000,
    "stage3_prefetch_bucket_size": 20_000,
    "stage3_max_reuse_distance": 0,
    "stage3_param_persistence_threshold": 100,
}
OFFLOAD = {**NOTHING_AHEAD, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two forwards": {"forwards": 2},
    "accumulation": {"accumulation": 2},
    "late stop": {"early_stop": False},
    "defaults": {"zero": {}},
    "ahead": {"zero": AHEAD, "steps": 4},  # the trace is recorded and used
    "ahead, two forwards": {"zero": AHEAD, "steps": 4, "forwards": 2},
    "small sub-groups": {"zero": {**NOTHING_AHEAD, "sub_group_size": 1000}},
    "offload": {"zero": OFFLOAD},
}
SCENARIOS = ("", "unused", "embedding", "table", "nested", "exception", "retain", "eval")


def asked(stack: str, name: str, among: Iterable[str]) -> bool:
    """Whether ``name`` runs on ``stack``: in `make test` the two newest stacks take turns with them."""
    turns = {"tf457-ds0182": 0, "tf523-ds0198": 1}
    return FULL or (stack in turns and list(among).index(name) % 2 == turns[stack])


def trainings(stack: str) -> Iterator[tuple[str, Run]]:
    """Checkpointed trainings of ``stack``, patched."""
    base = Run(kind=STACKS[stack], checkpointing="nonreentrant", patched=True, steps=3)
    for name, setting in SETTINGS.items():
        if name not in EVERYWHERE and not asked(stack, name, SETTINGS):
            continue
        # Real ranks where gathers and gradients are at stake, one rank for the settings.
        real = name in ("plain", "two forwards")
        for tuning in ("lora", "full") if real else ("lora",):
            yield f"{tuning}, {name}", replace(base, tuning=tuning, world=2 if real else 1, **setting)
    yield "modules_to_save", replace(base, tuning="to_save", world=1)
    if stack in TORCH_STYLE:
        yield "loss.backward()", replace(base, backward="loss")


def comparable(stack: str) -> Iterator[tuple[str, Run]]:
    """Those that run with checkpointing off as well, so that there is something to compare with."""
    broken = {"modules_to_save"} if stack in BROKE_TO_SAVE else set()
    return ((name, run) for name, run in trainings(stack) if name not in broken)


def scenarios(stack: str) -> Iterator[tuple[str, Run]]:
    base = Run(kind="blocks", checkpointing="nonreentrant", patched=True, steps=3, world=1)
    for scenario in SCENARIOS:
        if scenario == "retain" and stack in NO_SECOND_BACKWARD:
            continue
        if not scenario or asked(stack, scenario, SCENARIOS):
            yield scenario or "no-grad input", replace(base, scenario=scenario)
    for scenario in ("", "nested"):
        if asked(stack, scenario, ("", "nested")):
            yield (
                f"{scenario or 'no-grad input'}, late stop",
                replace(base, scenario=scenario, early_stop=False),
            )


def insisted(stack: str) -> Iterator[tuple[str, Run]]:
    """``use_reentrant=True`` with a model called twice before the backward."""
    base = Run(kind=STACKS[stack], checkpointing="reentrant", forwards=2, tuning="full", patched=True)
    yield "waiting in the bucket", base
    offload = {**SMALL_BUCKETS, "offload_optimizer": {"device": "cpu"}}
    others = {
        "reduced before": replace(base, zero=SMALL_BUCKETS),
        "reduced before, LoRA": replace(base, zero=SMALL_BUCKETS, tuning="lora"),
        "reduced before, offload": replace(base, zero=offload, world=1),
        "accumulation": replace(base, zero=SMALL_BUCKETS, accumulation=2, world=1),
    }
    yield from ((name, run) for name, run in others.items() if asked(stack, name, others))


def saves() -> tuple[Run, Run]:
    """On every rank, and on one only."""
    base = Run(kind="blocks", checkpointing="nonreentrant", patched=True, steps=1)
    return replace(base, scenario="save"), replace(base, scenario="save_alone")


def saves_bare() -> list[Run]:
    """Without checkpointing, so that F4 does not come first; killed where a user would wait for ever.

    It is DeepSpeed's own on every release: `make test` waits for it on one stack.
    """
    return [replace(off(run), limit=30.0) for run in saves()]


def second_backward() -> Run:
    return Run(kind="blocks", checkpointing="off", steps=3, world=1, scenario="retain")


def off(run: Run) -> Run:
    return replace(run, checkpointing="off", patched=False)


def bare(run: Run) -> Run:
    return replace(run, patched=False)


Results = Callable[[str], Callable[[Run], dict[str, Any]]]


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """For a stack's name: what each of its runs did. All of them share one process."""

    @functools.cache
    def of_stack(name: str) -> dict[str, dict[str, Any]]:
        patched = [run for _, run in [*trainings(name), *scenarios(name), *insisted(name)]]
        failing = [run for _, run in insisted(name)]
        compared = ("lora, plain", "full, plain", "modules_to_save")
        failing += [run for what, run in trainings(name) if what in compared]
        runs = [*map(off, patched), *map(bare, failing), *patched, *saves()]
        runs += saves_bare() if name in HANGS_ON else []
        runs += [second_backward()] if name in NO_SECOND_BACKWARD else []
        return perform(name, runs, tmp_path_factory.mktemp(name))

    return lambda name: lambda run: of_stack(name)[run.id]


def perform(
    name: str, runs: list[Run], out: Path, env: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    stack = envs.read_stacks()[name]
    envs.make(stack)
    listed = out / "runs.json"
    unique = {run.id: run for run in runs}
    listed.write_text(json.dumps([dataclasses.asdict(run) for run in unique.values()]))
    command: list[str | Path] = ["python", "-m", "bench.zero3_gather_ranks", listed, "--out", out]
    finished = launch.run(stack, command, limit=300 + 60 * len(unique), env=env)
    found = [json.loads(line) for line in finished.output.splitlines() if line.startswith('{"id": ')]
    assert finished.rc == 0, str(finished)
    assert len(found) == len(unique), str(finished)
    return {result["id"]: result for result in found}


def cases(of: Callable[[str], Iterator[tuple[str, Run]]]) -> pytest.MarkDecorator:
    parameters = [
        pytest.param(stack, run, id=f"{stack}, {name}") for stack in STACKS for name, run in of(stack)
    ]
    return pytest.mark.parametrize(("stack", "run"), parameters)


@cases(trainings)
def test_gradients_of_the_first_step_are_those_without_deepspeed(
    stack: str, run: Run, results: Results
) -> None:
    result = results(stack)(run)
    assert result["error"] is None
    assert result["difference"] <= EXACT


@cases(comparable)
def test_gradients_of_every_step_are_those_of_checkpointing_off(
    stack: str, run: Run, results: Results
) -> None:
    assert results(stack)(run)["to_off"] <= EXACT


@cases(trainings)
def test_nothing_stays_gathered(stack: str, run: Run, results: Results) -> None:
    assert results(stack)(run)["left"] == []


@cases(comparable)
def test_gathers_are_those_of_checkpointing_off(stack: str, run: Run, results: Results) -> None:
    mine, floor = (results(stack)(which)["steps"][-1] for which in (run, off(run)))
    hooked = run.forwards if stack in HOOKED else 0  # gathers of the patch embedding for a backward
    assert mine["elements"] <= 1.03 * floor["elements"] + hooked * HOOKED.get(stack, 0)
    assert mine["calls"] <= floor["calls"] + FIRST_BLOCK + hooked
    block = 0.3 * results(stack)(run)["parameters"]
    assert mine["peak"] <= floor["peak"] + block


@cases(scenarios)
def test_blocks_no_hook_reaches(stack: str, run: Run, results: Results) -> None:
    result = results(stack)(run)
    assert result["error"] is None
    assert result["difference"] <= EXACT
    assert result["left"] == []
    assert all(not step.get("left_after_eval") for step in result["steps"])


@cases(scenarios)
def test_no_block_is_gathered_a_third_time(stack: str, run: Run, results: Results) -> None:
    result = results(stack)(run)
    backwards = 3 if run.scenario == "retain" else 2  # each backward recomputes
    assert result["steps"][-1]["elements"] <= backwards * result["parameters"]
    assert result["steps"][-1]["peak"] * 3 <= result["parameters"] + 2, "more than one of three blocks"


@cases(insisted)
def test_reentrant_sums_are_right(stack: str, run: Run, results: Results) -> None:
    result = results(stack)(run)
    assert result["error"] is None
    assert result["difference"] <= EXACT
    assert result["to_off"] <= EXACT


@cases(insisted)
def test_reentrant_sums_are_wrong_without(stack: str, run: Run, results: Results) -> None:
    result = results(stack)(bare(run))
    assert result["error"] is not None or result["difference"] > 0.1


@pytest.mark.parametrize("stack", sorted(NO_SECOND_BACKWARD))
def test_a_second_backward_fails_in_deepspeed_itself(stack: str, results: Results) -> None:
    assert results(stack)(second_backward())["error"]


@pytest.mark.parametrize("stack", STACKS)
def test_saving_on_one_rank_is_an_error_that_names_the_others(stack: str, results: Results) -> None:
    everywhere, alone = (results(stack)(run)["error"] for run in saves())
    assert everywhere is None
    assert "was called on rank 0 and not on rank 1" in alone


@pytest.mark.parametrize("stack", HANGS_ON)
def test_saving_on_one_rank_hangs_without(stack: str, results: Results) -> None:
    everywhere, alone = (results(stack)(run)["error"] for run in saves_bare())
    assert everywhere is None
    assert alone == f"ended with exit code {-signal.SIGKILL}"


@pytest.mark.parametrize("stack", STACKS)
def test_frozen_parameters_fail_without(stack: str, results: Results) -> None:
    run = dict(trainings(stack))["lora, plain"]
    result = results(stack)(bare(run))
    if stack in ENDED_F4:
        assert result["error"] is None
    else:
        assert "have different metadata" in result["error"]


@pytest.mark.parametrize("stack", STACKS)
def test_modules_to_save_fail_without(stack: str, results: Results) -> None:
    result = results(stack)(off(dict(trainings(stack))["modules_to_save"]))
    assert (result["error"] is not None) == (stack in BROKE_TO_SAVE)
    if stack in BROKE_TO_SAVE:
        assert "ds_grads_remaining" in result["error"]


DEPENDS_ON = {  # patch, the file it looks at, something its functions say
    "zero3_recompute_release": ("parameter_offload", "coordinator.trace_prologue(sub_module)"),
    "zero3_repeated_reduction": ("stage3", "self.micro_step_id == 0"),
}


@pytest.mark.parametrize("name", DEPENDS_ON)
@pytest.mark.parametrize("stack", STACKS)
def test_a_release_that_changes_these_functions_is_declined(stack: str, name: str, tmp_path: Path) -> None:
    (folder,) = envs.read_stacks()[stack].folder.glob("lib/python*/site-packages/deepspeed/runtime/zero")
    patch = importlib.import_module(f"vlmpatch.patches.deepspeed.{name}")
    file, line = DEPENDS_ON[name]
    assert patch.look(of_file(file, str(folder / f"{file}.py"))) is None
    shutil.copytree(folder, tmp_path / "zero")
    changed = tmp_path / "zero" / f"{file}.py"
    changed.write_text(changed.read_text().replace(line, f"({line})"))
    with pytest.raises(Unrecognised, match="not as any known release"):
        patch.look(of_file(file, str(changed)))


@pytest.mark.parametrize("stack", STACKS)
def test_a_changed_release_of_parameters_is_declined_too(stack: str, tmp_path: Path) -> None:
    (folder,) = envs.read_stacks()[stack].folder.glob("lib/python*/site-packages/deepspeed/runtime/zero")
    patch = importlib.import_module("vlmpatch.patches.deepspeed.zero3_recompute_release")
    shutil.copytree(folder, tmp_path / "zero")
    changed = tmp_path / "zero" / "partitioned_param_coordinator.py"
    changed.write_text(changed.read_text().replace(".ds_active_sub_modules.discard(", ".gone("))
    with pytest.raises(Unrecognised, match="release_sub_module"):
        patch.look(of_file("offload", str(tmp_path / "zero" / "parameter_offload.py")))


@pytest.mark.parametrize("stack", STACKS)
def test_ranks_that_part_are_named_before_they_hang(stack: str, tmp_path: Path) -> None:
    run = Run(kind="blocks", checkpointing="nonreentrant", patched=True, steps=1, scenario="uneven")
    (result,) = perform(stack, [run], tmp_path).values()
    assert "exit code" in result["error"]
    logs = [(tmp_path / run.id / f"rank{rank}.log").read_text() for rank in range(run.world)]
    assert any("blocks.0.norm.weight on rank 0, blocks.1.norm.weight on rank 1" in log for log in logs)


@pytest.mark.parametrize("stack", STACKS)
def test_stock_gathers_more(stack: str, results: Results) -> None:
    run = dict(trainings(stack))["full, plain"]
    stock, mine = (results(stack)(which)["steps"][-1] for which in (bare(run), run))
    assert mine["calls"] < 0.9 * stock["calls"]


@pytest.mark.slow
def test_the_table_that_a_gpu_fills_is_written_on_a_cpu(tmp_path: Path) -> None:
    command = ["python", "-m", "bench.zero3_gather_ranks", "--table", "--world", "1", "--out", str(tmp_path)]
    finished = launch.run(envs.read_stacks()["tf457-ds0182"], command, limit=300)
    assert finished.rc == 0, str(finished)
    rows = [line.split(" | ") for line in finished.output.splitlines() if line.startswith("| ")]
    lines = {row[0].strip("| "): row for row in rows}
    assert {"off", "reentrant", "non-reentrant", "vlmpatch"} <= lines.keys()
    assert "CheckpointError" in lines["non-reentrant"][1]
    assert float(lines["vlmpatch"][2]) < float(lines["reentrant"][2])
