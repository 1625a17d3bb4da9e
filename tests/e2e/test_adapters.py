"""Adapters that were saved before transformers named its models' parts anew, loaded on newer stacks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab import envs, launch

OLD, LAST_4, NEWEST = "tf445-ds0154", "tf457-ds0182", "tf523-ds0198"
# By stack and model: the ways that lose the whole adapter without vlmpatch.
LOST: dict[tuple[str, str], set[str]] = {
    (LAST_4, "qwen2_vl"): {"load_adapter", "resume"},
    (LAST_4, "llava"): {"load_adapter", "resume"},
    (NEWEST, "qwen2_vl"): {"from_pretrained", "load_adapter", "resume"},
    (NEWEST, "llava"): set(),
}
DEFAULT = (LAST_4, "qwen2_vl")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """For a model's kind: its checkpoint, and an adapter of it, both of the old stack."""
    made: dict[str, tuple[Path, Path]] = {}

    def of(kind: str) -> tuple[Path, Path]:
        if kind not in made:
            stack, adapter = envs.read_stacks()[OLD], tmp_path_factory.mktemp(kind)
            model = launch.checkpoint(stack, kind)
            act(OLD, "save", model, adapter)
            made[kind] = (model, adapter)
        return made[kind]

    return of


def act(name: str, *words: str | Path, env: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    stack = envs.read_stacks()[name]
    envs.make(stack)
    finished = launch.run(stack, ["python", "-m", "tests.programs.adapters", *words], limit=240, env=env)
    assert finished.rc == 0, str(finished)
    return [json.loads(line) for line in finished.output.splitlines() if line.startswith('{"way"')]


@pytest.mark.parametrize(
    ("stack", "kind"),
    [pytest.param(*case, marks=[] if case == DEFAULT else [pytest.mark.slow]) for case in LOST],
)
def test_an_adapter_of_before_4_52(stack: str, kind: str, saved: Callable[[str], tuple[Path, Path]]) -> None:
    model, adapter = saved(kind)
    bare = act(stack, "load", model, adapter)
    assert {found["way"] for found in bare if not found["loaded"]} == LOST[stack, kind]
    for found in act(stack, "load", model, adapter, "--patched"):
        assert found["loaded"] == found["saved"] > 0, found
