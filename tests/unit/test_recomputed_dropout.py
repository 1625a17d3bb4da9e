"""What the patch takes for accelerate's checkpointing of layers, and what it says in their place."""

from __future__ import annotations

from typing import Any

import pytest

from patches.accelerate import fsdp2_recomputed_dropout as patch
from vlmpatch import api

SOURCE = """
def fsdp2_apply_ac(accelerator, model):
    return checkpoint_wrapper(model, preserve_rng_state=False)
"""


def look(text: str) -> str | None:
    return patch.look(api.Code("accelerate.utils.fsdp_utils", "fsdp_utils.py", text))


def test_layers_whose_state_is_thrown_away_are_patched() -> None:
    assert look(SOURCE) is None


def test_a_release_that_keeps_it_or_checkpoints_nothing_is_left_alone() -> None:
    assert "kept" in str(look(SOURCE.replace(", preserve_rng_state=False", "")))
    assert "no fsdp2_apply_ac" in str(look(""))


def test_a_release_that_checkpoints_otherwise_is_not_recognised() -> None:
    with pytest.raises(api.Unrecognised, match="any known release"):
        look(SOURCE.replace("checkpoint_wrapper(", "checkpointed("))


def test_what_is_said_besides_is_handed_on() -> None:
    def wrap(module: object, **said: Any) -> tuple[object, dict[str, Any]]:
        return module, said

    layer = object()
    kept = patch.keeping(wrap)(layer, preserve_rng_state=False, early_stop=False)
    assert kept == (layer, {"preserve_rng_state": True, "early_stop": False})
