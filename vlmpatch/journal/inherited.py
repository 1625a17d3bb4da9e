"""A method that a class inherits: it is wrapped where it is defined, for calls on the heir.

So the method stays one function under its own name, whichever of the classes it is asked of; a function of
the heir's own would need another name to pickle by. Between packages it has that name: a script's class is
no reason to touch the library's that it is derived from.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

from vlmpatch.journal.tracing import answers_while_traced, own_code

ASKED = "__vlmpatch_asked__"


def home(owner: Any, name: str) -> type | None:
    """The class of the owner's package from which it inherits the plain method ``name``, if there is one."""
    if not isinstance(owner, type) or name in vars(owner):
        return None
    cls = next((cls for cls in owner.__mro__[1:] if name in vars(cls)), None)
    if cls is None or type(vars(cls)[name]) is not FunctionType:
        return None
    return cls if _package(cls) == _package(owner) else None


def for_calls_on(heir: type, wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """``wrapper`` for objects of ``heir``, which it does not keep alive; nothing for others."""
    known = weakref.ref(heir)

    def inherits(cls: type) -> bool:
        return (heir := known()) is not None and issubclass(cls, heir)

    def for_heirs(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not inherits(type(self)):
            return original(self, *args, **kwargs)
        return wrapper(original, self, *args, **kwargs)

    answers_while_traced(inherits)
    made = own_code(for_heirs)
    vars(made)[ASKED] = wrapper
    return made


def layers(wrapper: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """``wrapper``, and the one it was made of by ``for_calls_on``."""
    asked = getattr(wrapper, ASKED, None)
    return (wrapper,) if asked is None else (wrapper, asked)


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]
