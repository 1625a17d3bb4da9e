"""What the patches for the field's failures take for theirs, and what they leave alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from vlmpatch import catalog
from vlmpatch.engine import load

ENTRIES = catalog.read(catalog.default_path()).entries


def patch_file(id_: str) -> Any:
    module = load(ENTRIES[id_])
    return importlib.import_module(module.__name__)


def upstreams_hook() -> Callable[..., Any]:
    def make_inputs_require_grads(module: Any, input: Any, output: Any) -> None:
        output.requires_grad_(True)

    return make_inputs_require_grads


def hook_of_another_name() -> Callable[..., Any]:
    def watch(module: Any, input: Any, output: Any) -> None:
        output.requires_grad_(True)

    return watch


def hook_that_keeps_the_leaf() -> Callable[..., Any]:
    kept = []

    def make_inputs_require_grads(module: Any, input: Any, output: Any) -> None:
        output.requires_grad_(True)
        kept.append(output)

    return make_inputs_require_grads


@pytest.mark.parametrize(
    ("hook", "taken"),
    [
        (upstreams_hook(), True),
        (hook_of_another_name(), False),
        (hook_that_keeps_the_leaf(), False),
        (print, False),
    ],
)
def test_which_hooks_hand_on_a_copy(hook: Callable[..., Any], taken: bool) -> None:
    assert patch_file("input-grads-leaf")._lets_require_grad(hook) is taken
