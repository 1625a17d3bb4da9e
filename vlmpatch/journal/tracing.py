"""What torch.compile does not begin to trace, it does not begin to trace by way of us.

Dynamo decides by a function's file whether its frame may become a graph: of torch's own nearly none may, so
that DDP's forward runs as it is written and the model inside is compiled. A function of ours lies in a file
of which dynamo knows nothing. Where the original's frame would be left alone, so is ours; what a trace meets
on its way is decided as ever, and goes through us.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

DYNAMO = "torch._dynamo"
PATCHES = "patches"  # the package that patch files lie in, of ours and of the sets of others


def own_code(function: Callable[..., Any]) -> FunctionType:
    """``function`` with a code object that no other has: what dynamo is told is told of a code object."""
    assert isinstance(function, FunctionType)
    function.__code__ = function.__code__.replace()
    return function


def answers_while_traced(function: Callable[..., Any]) -> None:
    """Have dynamo call ``function``, one of ours, as it traces, and take the answer for a constant.

    As ``torch.compiler.assume_constant_result`` does it, for which torch would have to be imported. What its
    arguments may be differs between releases; a class is taken by all.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]


def take_for_tuples(kind: type) -> None:
    """Have dynamo take objects of ``kind``, a tuple of ours, for tuples where a trace made what holds them.

    That has no source, and of such objects torch 2.4 knows no class that is derived from another.
    """
    builder = getattr(sys.modules.get(f"{DYNAMO}.variables.builder"), "SourcelessBuilder", None)
    handlers = getattr(builder, "_type_handlers", None)
    if isinstance(handlers, dict) and tuple in handlers:
        handlers.setdefault(kind, handlers[tuple])


def leave_alone(functions: Iterable[Any], original: Any) -> None:
    """Have dynamo begin no graph with ``functions``, if it is loaded and would begin none with ``original``.

    It is asked by ``torch._dynamo.trace_rules.check`` and told by ``torch._C._dynamo.eval_frame.skip_code``,
    as its own ``disable(recursive=False)`` does; a release that has neither is left to itself. What a wrapper
    calls of patch files is left alone with it: dynamo asks anew for each frame below one that it skips.
    """
    rules, frames = (sys.modules.get(f"{DYNAMO}.{name}") for name in ("trace_rules", "eval_frame"))
    check, skip = getattr(rules, "check", None), getattr(frames, "skip_code", None)
    if check is None or skip is None:
        return
    code = _code(original)
    if code is not None and not check(code):
        return
    for function in functions:
        for ours in (_code(function), *_beside(function)):
            if ours is not None:
                skip(ours)


def _beside(function: Any) -> Iterator[CodeType]:
    """The code of all that the patch file of ``function`` has, and the files beside it that it imports."""
    if type(function) is not FunctionType or hasattr(function, "__wrapped__"):
        return  # what stands for another has that one's module
    first = str(function.__module__)
    above, patches, _ = first.partition(f"{PATCHES}.")
    if not patches:
        return
    seen, left = set(), [first]
    while left:
        name = left.pop()
        if name in seen or name not in sys.modules:
            continue
        seen.add(name)
        for value in [*vars(sys.modules[name]).values()]:
            home = value.__name__ if type(value) is ModuleType else getattr(value, "__module__", None)
            if isinstance(home, str) and home.startswith(above + patches):
                left.append(home)
                if home == name:
                    yield from _codes_of(value)


def _codes_of(value: Any) -> Iterator[CodeType]:
    """The code of a function, or of the methods of a class, with that of the functions made inside."""
    left = [_code(each) for each in (vars(value).values() if isinstance(value, type) else (value,))]
    while left:
        if (code := left.pop()) is not None:
            yield code
            left += [inner for inner in code.co_consts if isinstance(inner, CodeType)]


def _code(function: Any) -> CodeType | None:
    # A builtin has none, nor a frame that could become a graph.
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code if isinstance(code, CodeType) else None
