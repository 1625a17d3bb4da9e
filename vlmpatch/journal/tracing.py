"""What torch.compile does not begin to trace, it does not begin to trace by way of us.

Dynamo decides by a function's file whether its frame may become a graph: of torch's own nearly none may, so
that DDP's forward runs as it is written and the model inside is compiled. A function of ours lies in a file
of which dynamo knows nothing. Where the original's frame would be left alone, so is ours; what a trace meets
on its way is decided as ever, and goes through us.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any

DYNAMO = "torch._dynamo"


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


def leave_alone(functions: Iterable[Any], original: Any) -> None:
    """Have dynamo begin no graph with ``functions``, if it is loaded and would begin none with ``original``.

    It is asked by ``torch._dynamo.trace_rules.check`` and told by ``torch._C._dynamo.eval_frame.skip_code``,
    as its own ``disable(recursive=False)`` does; a release that has neither is left to itself.
    """
    rules, frames = (sys.modules.get(f"{DYNAMO}.{name}") for name in ("trace_rules", "eval_frame"))
    check, skip = getattr(rules, "check", None), getattr(frames, "skip_code", None)
    if check is None or skip is None:
        return
    code = _code(original)
    if code is not None and not check(code):
        return
    for function in functions:
        if (ours := _code(function)) is not None:
            skip(ours)


def _code(function: Any) -> CodeType | None:
    # A builtin has none, nor a frame that could become a graph.
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code if isinstance(code, CodeType) else None
