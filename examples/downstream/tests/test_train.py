"""The patches are those that were agreed on, and training with them moves every part of the model.

``python -m unittest`` runs them; they need the pinned packages, and no GPU.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
from tiny_vl import train

import vlmpatch

ROOT = Path(__file__).resolve().parents[1]


class TestPatches(unittest.TestCase):
    def test_they_are_those_of_the_lock(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "vlmpatch", "lock", "--diff"], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def test_none_of_them_failed(self) -> None:
        states = vlmpatch.status().values()
        unwell = [each for each in states if each.state in (vlmpatch.State.FAILED, vlmpatch.State.CONFLICT)]
        assert unwell == []


class TestTraining(unittest.TestCase):
    def test_every_part_of_the_model_moves(self) -> None:
        model = train.tiny_model()
        before = {name: value.clone() for name, value in model.named_parameters()}
        with tempfile.TemporaryDirectory() as folder:
            trainer = train.train(model, train.tiny_rows(4), Path(folder), steps=4)
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        assert len(losses) == 4
        still = [name for name, value in model.named_parameters() if torch.equal(value.cpu(), before[name])]
        assert still == []


if __name__ == "__main__":
    unittest.main()
