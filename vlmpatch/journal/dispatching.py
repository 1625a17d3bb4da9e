"""The plain function that lies at a location, and calls what is wrapped there.

Scripts ask a model what it takes by ``"pixel_values" in model.forward.__code__.co_varnames``, and leave out
of a batch what it does not name. What a code object names is what its source names: ours names the parameters
of the original too, where nothing runs any more, and for its own variables takes names that no parameter has.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any

from vlmpatch.journal.tracing import own_code

_VARARGS, _VARKEYWORDS = 0x04, 0x08  # inspect has names for them, and takes its time to be imported
_LINE = sys._getframe().f_lineno + 1  # a traceback shows the lines of this text
_SOURCE = """
def around(head):
    def dispatch(*__args, **__kwargs):
        __wrapper, __below, _ = head[0]
        return __wrapper(__below, *__args, **__kwargs)
        {room}
    return dispatch
"""


def dispatching(head: Sequence[Any], original: Callable[..., Any], found: Any) -> FunctionType:
    """A function in the place of ``original``.

    Args:
        head: holds a wrapper, and what that is handed; the function looks there in each call.
        original: whose name, parameters and words it has.
        found: what lay there, whose parameters its code names if it is a function of Python.
    """
    names = _parameters(found)
    code = _with_room(len(names))
    given = code.co_varnames[: len(code.co_varnames) - len(names)]
    code = code.replace(co_varnames=(*given, *names))
    made = FunctionType(code, globals(), "dispatch", None, (CellType(head),))
    return own_code(functools.update_wrapper(made, original))


def _parameters(function: Any) -> tuple[str, ...]:
    if type(function) is not FunctionType:
        return ()
    code = function.__code__
    starred = bool(code.co_flags & _VARARGS) + bool(code.co_flags & _VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + starred]


@functools.cache
def _with_room(count: int) -> CodeType:
    """The code of ``dispatch`` with ``count`` variables that nothing is put into.

    They are compiled, and named later: from Python 3.11 on the bytecode counts its cells after its variables.
    """
    room = "".join(f"__{number} = " for number in range(count)) + "None"
    source = "\n" * (_LINE - 1) + _SOURCE.format(room=room)
    code = compile(source, __file__, "exec", dont_inherit=True)
    for _ in range(2):
        code = next(each for each in code.co_consts if isinstance(each, CodeType))
    return code
