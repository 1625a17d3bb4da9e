"""What came of a training that ``tests.e2e.drawing`` had told: its program ends with the line it reads.

``FOUND`` and a JSON object: every loss, norm of gradients and evaluation that the Trainer logged, and how far
the trained parameters are from those of the training that is right, as a share of the most that it moved any,
and which of them is.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.lab import trainers
from vlmpatch_lab import recording

LOGGED = ("loss", "grad_norm", "eval_loss", "test_loss", "eval_mean", "num_input_tokens_seen")
Values = dict[str, torch.Tensor]


def parser() -> argparse.ArgumentParser:
    """Of a program that is told what to do; ``--keep`` writes what is right, ``--right`` says what is."""
    made = argparse.ArgumentParser()
    made.add_argument("--told", type=json.loads, required=True)
    made.add_argument("--keep", type=Path)
    made.add_argument("--right", type=Path)
    return made


def trained(model: Any) -> set[str]:
    return {trainers.plain(name) for name, p in model.named_parameters() if p.requires_grad}


def values(model: Any, named: set[str]) -> Values:
    """Of what was trained at first: ZeRO-3 shows no master copy of what is frozen."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trainers.plain(name) in named)
    with trainers.gathered(model):
        found = recording.parameters(model)
    return {trainers.plain(name): value for name, value in found.items()}


def logged(history: list[dict[str, Any]]) -> list[float]:
    return [float(entry[name]) for entry in history for name in LOGGED if name in entry]


def tell(asked: argparse.Namespace, lines: list[float], before: Values, after: Values) -> None:
    """Print the line, and keep what is right where that is asked."""
    found: dict[str, Any] = {"logged": lines, "apart": 0.0, "worst": ""}
    if asked.right:
        right = torch.load(asked.right)
        moved = max(float((right["after"][n] - v).abs().max()) for n, v in right["before"].items())
        most = moved or 1.0  # what learns nothing is to stay as it is
        apart = {name: float((after[name] - v).abs().max()) / most for name, v in right["after"].items()}
        worst = max(apart, key=lambda name: apart[name])
        found |= {"apart": apart[worst], "worst": worst}
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        if asked.keep:
            torch.save({"before": before, "after": after}, asked.keep)
        print("\nFOUND", json.dumps(found), flush=True)  # a bar of progress may stand on this line


class Meter(transformers.TrainerCallback):  # type: ignore[misc]
    """Says what came of the training that calls it."""

    def __init__(self, asked: Any) -> None:
        self.asked = asked

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trained = trained(kwargs["model"])
        self.before = values(kwargs["model"], self.trained) if self.asked.keep else {}

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        after = values(kwargs["model"], self.trained)
        tell(self.asked, logged(state.log_history), self.before, after)
