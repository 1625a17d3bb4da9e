"""Runs inside a stack: calls every wrapper of every patch by position and by name, around a stand-in.

    python -m tests.trust.handed FOLDER

imports the targets of the catalog with vlmpatch on, and prints one JSON line: how many wrappers there are,
how many of them handed a call that is nothing to them through, object for object, and what was found.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from tests.trust.worker import REMOTE, lay_out_scripts

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
PLACED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
Call = tuple[tuple[Any, ...], dict[str, Any]]


def main() -> None:
    os.environ["VLMPATCH_LOG"] = "off"
    from vlmpatch import bootstrap
    from vlmpatch.journal.changes import Wrap

    lay_out_scripts(Path(sys.argv[1]))
    engine = bootstrap.engine()
    for entry in engine.catalog.entries.values():
        for target in entry.targets:
            with contextlib.suppress(Exception):  # a distribution that this stack does not have
                importlib.import_module(REMOTE if "modeling_minicpmv" in target else target)
    states = engine.status()
    found = [f"{id_}: {each.reason}" for id_, each in states.items() if each.state.value == "failed"]
    made: list[tuple[str, Any]] = [(record.patch, record.change) for record in engine.journal._records]
    wraps = [(patch, change) for patch, change in made if isinstance(change, Wrap) and change.alive]
    handed = 0
    for patch, change in wraps:
        words = [*_names(change._wrappers), *_calls(change)]
        found += [f"{patch}: {each}" for each in words if each]
        handed += "" in words
    print(json.dumps({"wrappers": len(wraps), "handed": handed, "found": found}), flush=True)


def _names(chain: Any) -> Iterator[str]:
    """Whether our function is found wherever the function was, under the names that it had."""
    from vlmpatch.journal.aliases import everywhere, own_name

    raw = getattr(chain.value.below, "__func__", chain.value.below)
    ours, where = chain.function, f"{chain.function.__module__}.{chain.function.__qualname__}"
    name = own_name(ours)
    found = getattr(chain.found.raw, "__func__", chain.found.raw)
    home = getattr(found, "__module__", None)  # builtins have none
    # A script's class that inherits a library's method gets one of its own, which pickles by its own name.
    if where != f"{home}.{found.__qualname__}" and _package(home) == _package(chain.value.location.owner()):
        yield f"{home}.{found.__qualname__} has become {where}"
    if "<locals>" not in where and hasattr(raw, "__qualname__") and name is None:
        yield f"{where} does not lead to ours"
    # Of what a module took from another package that one name is meant.
    if name is not None and inspect.ismodule(name.holder) and _package(home) == _package(name.holder):
        yield from (f"{each.holder.__name__} has {where} as it was" for each in everywhere(raw, [name.name]))


def _package(module: Any) -> str:
    """Of a module, by its name or not, or of what is defined in one."""
    name = module.__name__ if inspect.ismodule(module) else getattr(module, "__module__", module)
    return str(name).partition(".")[0]


def _calls(change: Any) -> Iterator[str]:
    """For each way to call it what went wrong; an empty text where both handed everything through."""
    chain, wrapper = change._wrappers, change._wrapper
    owner = chain.value.location.owner()
    bound = isinstance(owner, type) and chain.found.kind is not staticmethod
    outcomes = [_handed_through(wrapper, call, bound) for call in _ways(chain.found.call, bound)]
    yield from (each for each in outcomes if each)
    if all(each == "" for each in outcomes):
        yield ""


def _ways(function: Callable[..., Any], bound: bool) -> list[Call]:
    """A call of ``function`` by position, and one by name."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [((MagicMock(), MagicMock()), {})]
    this, rest = ([MagicMock()], parameters[1:]) if bound else ([], parameters)
    placed = [MagicMock() for each in rest if each.kind in PLACED]
    only = {each.name: MagicMock() for each in rest if each.kind is inspect.Parameter.KEYWORD_ONLY}
    first = [MagicMock() for each in rest if each.kind is inspect.Parameter.POSITIONAL_ONLY]
    named = {each.name: MagicMock() for each in rest if each.kind in NAMED}
    return [((*this, *placed), only), ((*this, *first), named)]


def _handed_through(wrapper: Callable[..., Any], call: Call, bound: bool) -> str | None:
    """Empty where objects and result came through, None where this call was something to the patch."""
    args, kwargs = call
    seen: list[Any] = []
    result = MagicMock()

    def stand_in(*given: Any, **named: Any) -> Any:
        seen[:] = [*given, *named.values()]
        return result

    try:
        returned = wrapper(stand_in, *args, **kwargs)
    except TypeError as error:
        return str(error) if str(error).startswith(wrapper.__qualname__) else None
    except Exception:
        return None  # a mock is no model
    same = {id(each) for each in seen} >= {id(each) for each in (*args, *kwargs.values())}
    return "" if same and returned in (result, None) else None


if __name__ == "__main__":
    main()
