"""best-checkpoint-in-shards: when a checkpoint's folder is made before its model is saved."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

patch: Any = importlib.import_module("vlmpatch.patches.transformers.best_checkpoint_in_shards")
SOURCE = """
class Trainer:
    def __init__(self, sharded, alone):
        self.is_fsdp_enabled, self.args = sharded, Args(save_only_model=alone)

    def save_model(self, output_dir=None, _internal_call=False):
        if "FULL_STATE_DICT" in str(self.kind):
            pass

    def _save_checkpoint(self, model, trial):
        if os.path.exists(best_checkpoint_dir):
            pass
"""


class Args(SimpleNamespace):
    pass


def trainer(*, sharded: bool, alone: bool) -> Any:
    module = ModuleType("transformers.trainer")
    vars(module)["Args"] = Args
    exec(SOURCE.replace("str(self.kind)", '""'), vars(module))
    patch.apply(api.Patch("best-checkpoint-in-shards", Journal()), module)
    return vars(module)["Trainer"](sharded, alone)


@pytest.mark.parametrize(
    ("sharded", "alone", "internal", "made"),
    [
        (True, False, True, True),
        (False, False, True, False),  # DDP
        (True, True, True, False),
        (True, False, False, False),  # a script's own
    ],
)
def test_a_checkpoint_of_fsdp_has_its_folder(
    sharded: bool, alone: bool, internal: bool, made: bool, tmp_path: Path
) -> None:
    place = tmp_path / "out" / "checkpoint-2"
    trainer(sharded=sharded, alone=alone).save_model(str(place), _internal_call=internal)
    assert place.exists() is made


def test_a_model_saved_without_a_place_is_left_alone() -> None:
    trainer(sharded=True, alone=False).save_model(_internal_call=True)


def test_it_looks_for_both_functions() -> None:
    def look(source: str) -> str | None:
        said: str | None = patch.look(api.Code("transformers.trainer", "trainer.py", source))
        return said

    assert look(SOURCE) is None
    assert look(SOURCE.replace("os.path.exists(best_checkpoint_dir)", "True"))
    assert look(SOURCE.replace('"FULL_STATE_DICT" in str(self.kind)', "True"))
    with pytest.raises(api.Unrecognised):
        look("class Trainer: pass")
