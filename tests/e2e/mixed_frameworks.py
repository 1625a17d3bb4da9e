"""What the tests of frameworks on mixed data share: the rows, the launch, and what is right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.test_launchers import LIMIT, PRINTED, RUN, Training, close
from tests.lab import envs, launch
from vlmpatch_lab.ports import free_port

Train = Callable[..., Training]  # of a model's kind and an engine, patched or not
Said = dict[str, Any]  # to a framework, in its own words
USUAL = ("ddp", "zero2", "zero3")


class Option(NamedTuple):
    """What is said, where it is asked, and of which model."""

    said: Said
    engines: tuple[str, ...] = USUAL
    kind: str = "qwen2_vl"


def rows(model: Path, folder: Path) -> Path:
    """The checkpoint's rows, a third of them without their image."""
    kept = [json.loads(line) for line in (model / "data" / "sft.jsonl").read_text().splitlines()]
    for row in kept[1::3]:
        row["messages"][0]["content"] = row["messages"][0]["content"].removeprefix("<image>")
        row["images"] = []
    path = folder / "mixed.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    return path


def deepspeed(stage: int, **more: Any) -> dict[str, Any]:
    """A configuration that leaves all else to the framework; ``more`` is about sharding."""
    auto = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    sharding = {"stage": stage, "stage3_param_persistence_threshold": 0, **more}
    return {**dict.fromkeys(auto, "auto"), "zero_optimization": sharding}


def launched(
    stack: str,
    words: Sequence[str],
    out: Path,
    engine: str,
    environ: Mapping[str, str],
    *,
    patched: bool,
    limit: float = LIMIT,
) -> Training:
    """Run a framework's command on two ranks; ``out`` is where it was told to write."""
    port, alone = str(free_port()), engine == "ddp"  # which needs no accelerator to be answered for
    env = {"NPROC_PER_NODE": "2", "MASTER_PORT": port, "PET_MASTER_PORT": port, **environ}
    command = [*(RUN if patched else ()), *words]
    made = envs.read_stacks()[stack]
    return Training(launch.run(made, command, limit=limit, env=env, gloo=not alone, waiting=not alone), out)


def bare_is_right(train: Train, kind: str, engine: str) -> tuple[bool, Training]:
    """Whether the bare run prints what DDP prints, and that run; the patched one must."""
    right = train(kind, "ddp", patched=True)
    bare, patched = (train(kind, engine, patched=how) for how in (False, True))
    for run in (right, patched):
        assert run.finished.rc == 0, str(run.finished)
    assert patched.printed() == pytest.approx(right.printed(), rel=PRINTED), str(patched.finished)
    return bare.finished.rc == 0 and close(bare.printed(), right.printed()), bare


def print_the_same(right: Training, patched: Training, steps: int) -> None:
    """Both end, and print the same of their steps and of what they evaluate."""
    for run in (right, patched):
        assert run.finished.rc == 0, str(run.finished)
    assert len(right.printed()) == 2 * steps, str(right.finished)
    assert patched.printed() == pytest.approx(right.printed(), rel=PRINTED, abs=1e-6), str(patched.finished)
    assert evaluated(patched) == pytest.approx(evaluated(right), rel=PRINTED), str(patched.finished)


def evaluated(training: Training) -> list[float]:
    found = re.findall(r"'eval_loss': '?([\d.e+-]+)", training.finished.output)
    return [float(value) for value in found]
