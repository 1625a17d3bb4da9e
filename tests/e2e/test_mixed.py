"""Batches with and without images on different ranks: what dies or is wrong bare is right patched.

"Right" is the same samples in one process without an engine, checkpointing off: the gradients of every
step, and what the optimizer made of the parameters.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.mixed_table import OPTIMIZER
from tests.lab import blank_images, cells, envs, launch
from tests.lab.cells import Result
from tests.standin.make import make_omni
from vlmpatch_lab.cell import Cell
from vlmpatch_lab.ports import free_port

TF445, TF457, TF523 = "tf445-ds0154", "tf457-ds0182", "tf523-ds0198"
GRADIENTS = 1e-5
# Adam divides by the gradient's size: what is rounding in a gradient is larger in a step.
PARAMETERS = 1e-3
Results = tuple[dict[str, Result], dict[str, Result]]


def mixed(kind: str, engine: str, tuning: str, pattern: str = "one-rank-text", accumulation: int = 1) -> Cell:
    optimizer = OPTIMIZER.get(engine, "adamw")
    return Cell(
        kind, engine, tuning, compared=2, pattern=pattern, accumulation=accumulation, optimizer=optimizer
    )


SHORT = {
    TF445: [
        mixed("qwen2_vl", "zero3", "full"),  # whose forward reads a weight of the tower from outside
        mixed("llava_next", "zero3", "full"),  # and puts a parameter of its own between the features
    ],
    TF457: [
        mixed("qwen2_5_vl", "ddp", "lora"),
        mixed("qwen2_5_vl", "zero2", "full", "text-step"),  # in which no rank moves the tower
        mixed("qwen2_5_vl", "zero3", "lora", "alternating"),
        mixed("llava", "zero3", "full"),
        mixed("llava", "fsdp1", "lora"),
        mixed("llava", "fsdp2", "lora"),
        mixed("glm4v_moe", "zero3", "lora", "images"),  # whose ranks also differ in the experts they call
        mixed("qwen3_vl_moe", "zero3", "full"),  # and how often they call an activation
        mixed("qwen2_5_omni_heard", "zero3", "full", "images"),  # a sound on one rank, an image on the other
        mixed("qwen2_audio", "zero3", "full", "alternating"),  # whose forward reads a weight from outside
        mixed("idefics3", "zero3", "full"),  # which embeds a token by itself where there is no text
        mixed("llama4", "zero3", "full"),  # whose tower's configuration says what its features are
        mixed("mistral3", "zero3", "full"),  # which takes one token for none
    ],
    TF523: [
        mixed("qwen3_vl", "ddp", "full", "alternating"),
        mixed("qwen3_vl", "zero3", "full"),
        mixed("llava", "zero3", "full"),
        mixed("minicpmv4_6", "zero3", "lora", "alternating"),
        mixed("gemma3", "fsdp2", "full"),
        mixed("gemma4", "fsdp2", "full", "images"),  # whose forward runs other modules before its towers
        mixed("voxtral", "zero3", "full", "alternating"),
        mixed("paddleocr_vl", "zero3", "full"),  # whose patches are squares
        mixed("molmo2", "zero3", "lora", "alternating"),  # whose tokens say what they pool
    ],
}


@pytest.fixture(scope="session")
def run_mixed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Results]:
    """For a stack's name: what its cells did bare, and patched."""

    @functools.cache
    def run(name: str) -> Results:
        out: Path = tmp_path_factory.mktemp(f"mixed-{name}")
        stack, wanted = envs.read_stacks()[name], SHORT[name]
        right = out / "right"
        cells.measure(stack, cells.measures(wanted), right)
        bare = cells.run(stack, wanted, out / "bare", reference=right)
        patched = cells.run(stack, wanted, out / "patched", patched=True, reference=right)
        return bare, patched

    return run


@pytest.mark.parametrize(
    ("stack", "cell"), [pytest.param(s, c, id=f"{s}:{c.id}") for s, found in SHORT.items() for c in found]
)
def test_mixed_batches_train(stack: str, cell: Cell, run_mixed: Callable[[str], Results]) -> None:
    bare, patched = (results[cell.id] for results in run_mixed(stack))
    assert not is_right(bare), f"holds without us: {bare}"
    assert is_right(patched), f"{patched}\n{patched.log[-4000:]}"


@pytest.mark.slow
@pytest.mark.parametrize("stack", [TF457, TF523])
def test_a_model_that_leaves_layers_out_ends_where_ranks_would_wait(stack: str, tmp_path: Path) -> None:
    wanted = [mixed("mllama", engine, "full") for engine in ("zero3", "fsdp1", "fsdp2")]
    wanted += [mixed("mllama", engine, "full", "images") for engine in ("zero3", "fsdp1", "fsdp2")]
    found = cells.run(envs.read_stacks()[stack], wanted, tmp_path, patched=True)
    for cell in wanted:
        result = found[cell.id]
        assert result.ok == (cell.pattern == "images"), str(result)
        assert result.ok or "runs its vision tower and its cross-attention layers only" in result.log


@pytest.mark.slow
@pytest.mark.parametrize("stack", [TF457, TF523])
def test_nothing_but_a_projector_is_trained_and_ddp_looks_for_what_is_unused(
    stack: str, tmp_path: Path
) -> None:
    """A text has no gradient at all, and DDP would wait for the first."""
    fields: dict[str, Any] = {"compared": 2, "pattern": "alternating", "scenario": "projector"}
    wanted = [Cell(kind, "ddp_unused", "full", **fields) for kind in ("llava", "qwen2_5_vl")]
    known = envs.read_stacks()[stack]
    bare = cells.run(known, cells.with_references(wanted), tmp_path / "bare")
    patched = cells.run(known, wanted, tmp_path / "patched", patched=True, reference=tmp_path / "bare")
    assert not any(bare[cell.id].ok for cell in wanted)
    assert all(is_right(patched[cell.id]) for cell in wanted), [*map(str, patched.values())]


def is_right(result: Result) -> bool:
    """Whether every rank's every gradient, and every parameter, is that of plain data parallel."""
    if not result.ok:
        return False
    assert result.difference is not None, f"never compared: {result}"
    assert result.parameters is not None, f"never compared: {result}"
    return (
        not result.missing
        and result.difference <= GRADIENTS
        and result.between_ranks == 0.0
        and result.parameters <= PARAMETERS
    )


# What a scenario of mixed_ranks.py does on which kind; every one dies bare.
SCENARIOS = (
    "image-and-both:qwen3_vl",
    "video-and-text:qwen3_vl",
    "evaluate:llava",
    "evaluate-between:qwen3_vl",
    "generate:qwen3_vl",
)
MORE = (
    "video-and-text-zero2:qwen3_vl",
    "video-and-text-fsdp1:qwen3_vl",
    "video-and-text-fsdp2:qwen3_vl",
    "evaluate-fsdp1:llava",
    "evaluate-fsdp2:qwen3_vl",
    "evaluate:gemma3",
    "text:minicpmo_first_repo",
    "text:granite_speech",
    "statistics:granite_speech",
    "statistics-fsdp2:granite_speech",
    "evaluate:minicpmo_repo",
    "evaluate-fsdp1:minicpmo_repo",
    "evaluate-fsdp2:minicpmo_repo",
    "generate:llava",
)
EARLIER = ("evaluate:llava", "evaluate:paligemma", "generate:llava")
SETS = [pytest.param(TF457, SCENARIOS, id=TF457)]
SETS += [
    pytest.param(stack, wanted, id=f"{stack}-{name}", marks=pytest.mark.slow)
    for stack, name, wanted in (
        (TF523, "short", SCENARIOS),
        (TF457, "more", MORE),
        (TF523, "more", MORE),
        (TF445, "earlier", EARLIER),
    )
]


@pytest.mark.parametrize(("stack", "wanted"), SETS)
def test_videos_evaluation_and_generation(stack: str, wanted: tuple[str, ...], tmp_path: Path) -> None:
    made = launch.checkpoints(envs.read_stacks()[stack], sorted({name.split(":")[1] for name in wanted}))
    bare, patched = (of_scenarios(stack, made, wanted, tmp_path, how) for how in ("bare", "patched"))
    for scenario in wanted:
        assert bare[scenario][0] is not None, f"{scenario} holds without us"
        assert patched[scenario][0] is None, f"{scenario}: {patched[scenario][0]}"
        assert patched[scenario][1] <= GRADIENTS, f"{scenario}: {patched[scenario][1]}"


@pytest.mark.parametrize("omni", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["V", "o"])
def test_numbers_of_slices(omni: bool, standin: Path, tmp_path: Path) -> None:
    """Of MiniCPM-V, and of MiniCPM-o, whose vision is the same."""
    folder = make_omni(standin, tmp_path / "omni") if omni else standin
    made = {"minicpmv": folder / "model"}
    bare, patched = (of_scenarios(TF457, made, ["slices:minicpmv"], tmp_path, h) for h in ("bare", "patched"))
    assert bare["slices:minicpmv"][0] is not None, "holds without us"
    assert patched["slices:minicpmv"][0] is None, patched
    assert patched["slices:minicpmv"][1] <= GRADIENTS


def of_scenarios(
    stack: str,
    models: dict[str, Path],
    scenarios: Sequence[str],
    out: Path,
    how: str,
    env: Mapping[str, str] | None = None,
) -> dict[str, tuple[str | None, float]]:
    """Of each scenario the error, and the largest relative difference to what is right."""
    envs.make(envs.read_stacks()[stack])
    command: list[str | Path] = ["python", "-m", "tests.e2e.mixed_ranks", *scenarios, "--out", out / how]
    command += ["--patched"] if how == "patched" else []
    command += ["--models", *(f"{kind}={folder}" for kind, folder in models.items())]
    finished = launch.run(envs.read_stacks()[stack], command, limit=120 + 100 * len(scenarios), env=env)
    found = [json.loads(line) for line in finished.output.splitlines() if line.startswith('{"id": ')]
    assert len(found) == len(scenarios), str(finished)
    return {report["id"]: (report["error"], report["difference"]) for report in found}


# By HF Trainer itself, launched by torchrun, all parameters of LLaVA trained with checkpointing.
TRAINED = [
    pytest.param(stack, engine, id=f"{stack}:{engine}", marks=pytest.mark.slow)
    for stack in (TF457, TF523)
    for engine in ("ddp", "zero2", "zero3")
]


@pytest.mark.parametrize(("stack", "engine"), TRAINED)
def test_hf_trainer_on_mixed_data(stack: str, engine: str, tmp_path: Path) -> None:
    right = train(stack, "plain", tmp_path / "right.pt")
    bare = train(stack, engine, tmp_path / "bare.pt")
    patched = train(stack, engine, tmp_path / "patched.pt", "--import-vlmpatch")
    assert right.rc == 0, str(right)
    assert patched.rc == 0, str(patched)
    if bare.rc == 0:
        assert apart(stack, tmp_path / "bare.pt", tmp_path / "right.pt") > 0.01, "holds without us"
    assert apart(stack, tmp_path / "patched.pt", tmp_path / "right.pt") <= GRADIENTS


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["0", "1000000"], ids=["kept-until-used-again", "kept-for-good"])
@pytest.mark.parametrize("stack", [TF457, TF523])
def test_hf_trainer_evaluates_between_steps(stack: str, kept: str, tmp_path: Path) -> None:
    """ZeRO-3 keeps all of a model this small, and a rank without an image would not ask for its tower."""
    told = ("--evaluate", "--kept", kept)
    right = train(stack, "plain", tmp_path / "right.pt")
    bare = train(stack, "zero3", tmp_path / "bare.pt", *told)
    patched = train(stack, "zero3", tmp_path / "patched.pt", *told, "--import-vlmpatch")
    assert right.rc == 0, str(right)
    assert bare.rc != 0, "holds without us"
    assert patched.rc == 0, str(patched)
    assert apart(stack, tmp_path / "patched.pt", tmp_path / "right.pt") <= GRADIENTS


def train(
    stack: str, engine: str, out: Path, *more: str, env: Mapping[str, str] | None = None
) -> launch.Finished:
    known = envs.read_stacks()[stack]
    envs.make(known)
    torchrun = ["torchrun", "--nproc_per_node=2", f"--master_port={free_port()}"]
    command: list[str | Path] = ["python"] if engine == "plain" else [*torchrun]
    command += [
        launch.ROOT / "tests" / "programs" / "train_mixed.py",
        "--model",
        launch.checkpoint(known, "llava"),
    ]
    command += ["--engine", engine, "--out", out, *more]
    alone = engine == "plain"
    return launch.run(known, command, limit=240, gloo=not alone, waiting=engine == "zero3", env=env)


def apart(stack: str, got: Path, right: Path) -> float:
    """The largest difference of any parameter, relative to its own largest entry."""
    program = (
        "import sys, torch; a, b = (torch.load(p) for p in sys.argv[1:]); "
        "print(max(float((a[n] - b[n]).abs().max() / b[n].abs().max()) for n in b))"
    )
    finished = launch.run(envs.read_stacks()[stack], ["python", "-c", program, got, right], limit=120)
    assert finished.rc == 0, str(finished)
    return float(finished.output.split()[-1])


def test_towers_take_the_blank_image_made_for_them() -> None:
    """Those of which ``tests.lab.beside_text`` makes no model that is consistent."""
    stack = envs.read_stacks()[envs.NEWEST]
    envs.make(stack)
    finished = launch.run(stack, ["python", "-W", "ignore", "-m", "tests.lab.blank_images"], limit=120)
    found = dict(line.split(": ", 1) for line in finished.output.splitlines() if ": (" in line)
    assert found.keys() == {family.__name__ for family in blank_images.FAMILIES}, finished.output
