"""The plain function that lies at a location, and calls what is wrapped there.

Scripts ask a model what it takes by ``"pixel_values" in model.forward.__code__.co_varnames``, and leave out
of a batch what it does not name. What a code object names is what its source names: ours names the parameters
of the original too, where nothing runs any more, and for its own variables takes names that no parameter has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

from vlmpatch.journal.tracing import own_code

_VARARGS, _VARKEYWORDS = 0x04, 0x08  # inspect has names for them, and takes its time to be imported


def dispatching(head: Sequence[Any], original: Callable[..., Any], found: Any) -> FunctionType:
    """A function in the place of ``original``.

    Args:
        head: holds a wrapper, and what that is handed; the function looks there in each call.
        original: whose name, parameters and words it has.
        found: what lay there; if it is a function of Python, its first 64 parameters are named.
    """
    made = _around(head)
    made.__code__ = _naming(made.__code__, _parameters(found))
    return own_code(functools.update_wrapper(made, original))


def _around(__head: Sequence[Any]) -> FunctionType:
    def dispatch(*__args: Any, **__kwargs: Any) -> Any:
        __wrapper, __below, __original, __aside = __head[0]
        try:
            return __wrapper(__below, *__args, **__kwargs)
        except AttributeError as __error:
            __say = __aside(__error, __args, __kwargs)
            if not __say:
                raise
        __result = __below(*__args, **__kwargs)
        __say()
        return __result
        # Room for names: bytecode counts its variables, so none can be added to code that is made.
        __0 = __1 = __2 = __3 = __4 = __5 = __6 = __7 = __8 = __9 = __10 = __11 = __12 = None
        __13 = __14 = __15 = __16 = __17 = __18 = __19 = __20 = __21 = __22 = __23 = __24 = __25 = None
        __26 = __27 = __28 = __29 = __30 = __31 = __32 = __33 = __34 = __35 = __36 = __37 = __38 = None
        __39 = __40 = __41 = __42 = __43 = __44 = __45 = __46 = __47 = __48 = __49 = __50 = __51 = None
        __52 = __53 = __54 = __55 = __56 = __57 = __58 = __59 = __60 = __61 = __62 = __63 = None

    assert isinstance(dispatch, FunctionType)
    return dispatch


def _naming(code: CodeType, names: Sequence[str]) -> CodeType:
    """``code`` with ``names`` for the first variables that nothing is put into."""
    own = code.co_varnames
    first = own.index("__0")
    given = names[: len(own) - first]
    return code.replace(co_varnames=(*own[:first], *given, *own[first + len(given) :]))


def _parameters(function: Any) -> tuple[str, ...]:
    if type(function) is not FunctionType:
        return ()
    code = function.__code__
    starred = bool(code.co_flags & _VARARGS) + bool(code.co_flags & _VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + starred]
