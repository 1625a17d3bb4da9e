"""Objects that lack what a wrapper reads of them: their call goes on as if there were no wrapper.

A test's stand-in for an engine, an optimizer made by hand, a class that puts off its parent's ``__init__``
have what the wrapped function reads, and nothing else. A wrapper that has not come to the function when it
meets such an object has done nothing that counts, and the function is called in its stead. What failed
elsewhere, or later, is an error like any other: nothing is called twice, and no rank that came as far as its
peers leaves them alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType, TracebackType
from typing import Any

from vlmpatch.support import log


def steps_aside(
    wrapper: Callable[..., Any],
    patch: str,
    error: AttributeError,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Callable[[], None] | None:
    """What says that ``wrapper`` stepped aside, where it ended in ``error`` before it came to its function.

    It is to be called when the function has returned: one that refuses the object too says so itself.

    Args:
        wrapper: is handed the function first.
        patch: whose wrapper it is; a warning of it says once what was lacking.
        error: as it reached the caller of ``wrapper``.
        args: what the wrapper was handed besides.
        kwargs: by name.
    """
    # None lacks everything, and what is left out of a call may be left out by this rank alone.
    if error.obj is None or not any(error.obj is each for each in (*args, *kwargs.values())):
        return None
    called = _called(error)
    if called is None or type(wrapper) is not FunctionType:  # a method is handed something else first
        return None
    if called.tb_frame.f_code is not wrapper.__code__ or _reached(wrapper.__code__, called.tb_lasti):
        return None
    kind = type(error.obj)
    lacks = f"{kind.__module__}.{kind.__qualname__} has no attribute {error.name!r}"
    says = f"{lacks}: this call went on without the patch"
    return functools.partial(log.warn_once, patch, lacks, says, own=True)


def _called(error: AttributeError) -> TracebackType | None:
    return error.__traceback__.tb_next if error.__traceback__ else None


def _reached(code: CodeType, failed: int) -> bool:
    """Whether ``code`` may have touched its first parameter when it failed at the offset ``failed``."""
    import dis  # not before there is an error: a start stays light

    if not code.co_argcount:
        return True
    function = code.co_varnames[0]
    steps = [each for each in dis.get_instructions(code) if each.opname != "MAKE_CELL"]
    touches = [each.offset for each in steps if each.argval == function or _both(each.argval, function)]
    first = min(touches, default=len(code.co_code))
    backwards = (
        each.opcode in (*dis.hasjrel, *dis.hasjabs) and each.offset > first and each.argval <= failed
        for each in steps
    )
    return first <= failed or any(backwards)  # an earlier round of a loop may have come to it


def _both(names: Any, function: str) -> bool:
    """Python 3.13 loads two variables in one step."""
    return isinstance(names, tuple) and function in names
