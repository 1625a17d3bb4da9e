"""What torch.compile is told to begin no graph with."""

from __future__ import annotations

import sys
from types import CodeType, ModuleType
from typing import Any

import pytest

from vlmpatch.journal.journal import Journal

HELPER = """
def asks(x):
    def inside():
        return x
    return inside()

class Seen:
    def method(self):
        return 1
"""
PATCH = """
import json
from acme.patches.helper import Seen, asks
from acme.model import layer

def around(original, *args, **kwargs):
    return asks(original(*args, **kwargs))
"""
MODEL = "def layer(): pass"


def module(name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, made)
    exec(source, vars(made))
    return made


@pytest.mark.parametrize("left_alone", [True, False])
def test_what_a_wrapper_calls_of_patch_files_begins_no_graph_either(
    left_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dynamo asks anew for each frame below one that it skips: torch 2.4 fails over one of DDP's helpers."""
    skipped: list[CodeType] = []
    dynamo: dict[str, dict[str, Any]] = {
        "trace_rules": {"check": lambda code: left_alone},
        "eval_frame": {"skip_code": skipped.append},
    }
    for name, held in dynamo.items():
        vars(module(f"torch._dynamo.{name}", "", monkeypatch)).update(held)
    for name in ("acme", "acme.patches"):
        module(name, "", monkeypatch)
    model = module("acme.model", MODEL, monkeypatch)
    helper = module("acme.patches.helper", HELPER, monkeypatch)
    patch = module("acme.patches.wraps", PATCH, monkeypatch)
    target: Any = ModuleType("target")
    target.function = lambda x: x + 1
    Journal().wrap("p", target, "function", patch.around)
    assert target.function(1) == 2
    names = {code.co_name for code in skipped}
    assert names == ({"dispatch", "around", "asks", "inside", "method"} if left_alone else set())
    assert model.layer.__code__ not in skipped
    assert (helper.asks.__code__ in skipped) is left_alone


def test_what_a_function_of_ours_holds_is_a_tuple_to_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    """In torch 2.4 it knows of what a trace has made itself only classes that it has a handler for."""
    target: Any = ModuleType("target")
    target.function = lambda x: x + 1
    handlers: dict[type, Any] = {tuple: lambda tx, value: value}
    builder = module("torch._dynamo.variables.builder", "class SourcelessBuilder: pass", monkeypatch)
    vars(builder)["SourcelessBuilder"]._type_handlers = handlers
    Journal().wrap("p", target, "function", lambda original, /, *args, **kwargs: original(*args, **kwargs))
    (head,) = (cell.cell_contents for cell in target.function.__closure__)
    assert handlers[type(head[0])] is handlers[tuple]
