"""best-checkpoint-per-rank: what a rank that does not save takes for the best checkpoint."""

from __future__ import annotations

import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

patch: Any = importlib.import_module("vlmpatch.patches.transformers.best_checkpoint_per_rank")
SOURCE = """
PREFIX_CHECKPOINT_DIR = "checkpoint"

class Trainer:
    def __init__(self, args, state):
        self.args, self.state = args, state

    def _get_output_dir(self, trial):
        return f"out/{trial}" if trial else "out"

    def _save_checkpoint(self, model, trial):
        best_checkpoint_dir = "out/checkpoint-" + str(self.state.best_global_step)
        if os.path.exists(best_checkpoint_dir):
            self.state.best_model_checkpoint = best_checkpoint_dir
"""
BARRIER = SOURCE.replace(
    "        best_checkpoint_dir =", "        dist.barrier()\n        best_checkpoint_dir ="
)


@pytest.mark.parametrize(
    ("saves", "best", "trial", "found"),
    [
        (False, 2, None, "out/checkpoint-2"),
        (False, 2, "run-1", "out/run-1/checkpoint-2"),
        (False, 1, None, "before"),
        (False, None, None, "before"),
        (True, 2, None, "before"),
    ],
)
def test_this_step_is_the_best_where_it_is(saves: bool, best: int | None, trial: Any, found: str) -> None:
    module = ModuleType("transformers.trainer")
    vars(module)["os"] = SimpleNamespace(path=SimpleNamespace(exists=lambda place: False))
    exec(SOURCE, vars(module))
    patch.apply(api.Patch("best-checkpoint-per-rank", Journal()), module)
    state = SimpleNamespace(global_step=2, best_global_step=best, best_model_checkpoint="before")
    trainer = vars(module)["Trainer"](SimpleNamespace(should_save=saves), state)
    trainer._save_checkpoint("model", trial=trial)
    assert state.best_model_checkpoint == found


def test_only_ranks_that_do_not_wait_are_changed() -> None:
    def look(source: str) -> str | None:
        said: str | None = patch.look(api.Code("transformers.trainer", "trainer.py", source))
        return said

    assert look(SOURCE) is None
    assert look(BARRIER) == "ranks wait before they look for the best checkpoint"
    assert look(SOURCE.replace("exists(", "isdir(")) == "the best checkpoint is not looked for as it is saved"
    with pytest.raises(api.Unrecognised):
        look("x = 1")
