"""Which wrapped methods fail on an object without what they read, where the methods themselves do not.

    python -m tests.programs.half_made deepspeed.runtime.engine transformers.trainer …

A failure is an ``AttributeError`` that arises in a patch file. Each method is called on an object of its
class that was never initialised and has whatever is asked of it, and then without each attribute that only
the wrapped one asked for. Prints a line of JSON per failure, and at its end how many methods there were and
how many attributes were taken away.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import vlmpatch  # noqa: F401  # imported first, as a script does

MARK = "__vlmpatch__"


def main() -> None:
    os.chdir(tempfile.mkdtemp())  # a method called with mocks may write files
    for name in sys.argv[1:]:
        importlib.import_module(name)
    methods = taken = 0
    for cls, name, wrapped in _methods():
        methods += 1
        original = inspect.unwrap(wrapped)
        known, asked = _called(original, cls)[0], _called(wrapped, cls)[0]
        for attribute in [each for each in asked if each not in known]:
            taken += 1
            error = _called(wrapped, cls, attribute)[1]
            if isinstance(error, AttributeError) and error.name == attribute and _of_a_patch(error):
                print(json.dumps({"fails": f"{cls.__name__}.{name}", "without": attribute}))
    print(json.dumps({"methods": methods, "taken": taken}))


def _methods() -> Iterator[tuple[type, str, Any]]:
    """Methods with wrappers, each once, of all classes that there are."""
    seen = set()
    for cls in list(_below(object)):
        for name, value in [*vars(cls).items()]:
            if inspect.isfunction(value) and vars(value).get(MARK) and value not in seen:
                seen.add(value)
                if name != "__init__":
                    yield cls, name, value


def _below(cls: type) -> Iterator[type]:
    subclasses: list[type] = type.__subclasses__(cls)
    for each in subclasses:
        yield each
        yield from _below(each)


def _called(function: Callable[..., Any], cls: type, *without: str) -> tuple[list[str], Exception | None]:
    """What ``function`` asked an object of, and the error in which it ended."""
    asked: dict[str, Any] = {}

    class Stub(cls):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            if name.startswith("__"):
                return object.__getattribute__(self, name)
            if name in without:
                raise AttributeError(f"no {name}")
            return asked.setdefault(name, mock.MagicMock(name=name))

        def __setattr__(self, name: str, value: Any) -> None:
            asked.setdefault(name, value)

    Stub.__name__, Stub.__abstractmethods__ = cls.__name__, frozenset()
    needed = [each for each in [*inspect.signature(function).parameters.values()][1:] if _needed(each)]
    try:
        function(Stub.__new__(Stub), *(mock.MagicMock() for _ in needed))
    except Exception as error:
        return list(asked), error
    return list(asked), None


def _of_a_patch(error: AttributeError) -> bool:
    asking = traceback.extract_tb(error.__traceback__)[-2]  # the last one is the stub's answer
    return "patches" in Path(asking.filename).parts


def _needed(parameter: inspect.Parameter) -> bool:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return parameter.kind in positional and parameter.default is inspect.Parameter.empty


if __name__ == "__main__":
    main()
