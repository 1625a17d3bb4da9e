"""Whether every call that a function takes reaches it through a wrapper, argument for argument."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from vlmpatch.support.signature import signature

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_ANYTHING = (Parameter("args", Parameter.VAR_POSITIONAL), Parameter("kwargs", Parameter.VAR_KEYWORD))


def difference(wrapper: Callable[..., Any], target: Callable[..., Any], bound: bool) -> str:
    """What ``target(...)`` takes and ``wrapper(target, ...)`` does not, in words; empty where it takes all.

    After its first parameter, which is handed the target, a wrapper names the target's parameters, by name,
    kind, order and default; ``*args`` and ``**kwargs`` stand for those it does not name. Of a target whose
    signature cannot be read it names none.

    Args:
        wrapper: what is to be put around it.
        target: the function itself.
        bound: whether the target's first argument is the object it is called on.
    """
    return _difference(list(signature(wrapper).parameters.values()), _parameters(target), bound)


def of_descriptor(raw: Any, owner: type, kind: type | None, call: Callable[..., Any]) -> Signature:
    """The signature of what a descriptor gives the class ``owner``, the object it binds to included.

    Args:
        raw: the descriptor.
        owner: the class it lies in.
        kind: ``classmethod`` or ``staticmethod`` where it is one.
        call: what is called in its stead, whose signature it is where there is none to be read.
    """
    try:
        found = signature(raw.__get__(None, owner))
    except Exception:  # another library's code: it may do anything
        return signature(call)
    if kind is not classmethod:
        return found
    bound = Parameter("cls", Parameter.POSITIONAL_ONLY)
    return found.replace(parameters=[bound, *found.parameters.values()])


def _parameters(target: Callable[..., Any]) -> list[Parameter]:
    try:
        return list(signature(target).parameters.values())
    except (TypeError, ValueError):  # a builtin, or a callable that hides it
        return list(_ANYTHING)


def _difference(own: list[Parameter], theirs: list[Parameter], bound: bool) -> str:
    ahead = [each for each in own[: 1 + bound] if each.kind in _BY_POSITION]  # the target, the object
    if not ahead:
        return "it takes no target"
    has_object = bound and theirs[:1] and theirs[0].kind in _BY_POSITION
    for mine, other in zip(ahead, (None, theirs[0] if has_object else None), strict=False):
        if (
            mine.kind is Parameter.POSITIONAL_OR_KEYWORD
            and not _is(mine, other)
            and _takes(theirs, mine.name)
        ):
            return f"an argument {mine.name}= would be taken for the wrapper's own; end that with a /"
    own, theirs = own[len(ahead) :], theirs[1:] if has_object and len(ahead) == 2 else theirs
    named = [each for each in own if each.kind in (*_BY_POSITION, Parameter.KEYWORD_ONLY)]
    for place, mine in enumerate(named):
        if why := _unlike(mine, place, theirs):
            return why
    known = {each.name for each in named}
    return _not_taken({each.kind for each in own}, [each for each in theirs if each.name not in known])


def _is(mine: Parameter, other: Parameter | None) -> bool:
    return other is not None and (other.name, other.kind) == (mine.name, mine.kind)


def _takes(theirs: list[Parameter], name: str) -> bool:
    """Whether they can be called with ``name=``."""
    return any(
        each.kind is Parameter.VAR_KEYWORD or (each.name == name and each.kind in _BY_NAME) for each in theirs
    )


def _unlike(mine: Parameter, place: int, theirs: list[Parameter]) -> str:
    if mine.kind is Parameter.KEYWORD_ONLY:
        other = next((each for each in theirs if each.name == mine.name), None)
    else:
        other = theirs[place] if place < len(theirs) else None
    if other is not None and other.name == mine.name and other.kind is not mine.kind:
        return f"its {mine.name} is {mine.kind.description}, where that has it {other.kind.description}"
    if other is None or not _is(mine, other):
        there = "nothing" if other is None else str(other).partition(":")[0].partition("=")[0].strip()
        return f"it names {mine.name} where that has {there}"
    if not _same_default(mine.default, other.default):
        return f"the default of {mine.name} is another"
    return ""


def _not_taken(kinds: set[Any], rest: list[Parameter]) -> str:
    for other in rest:
        by_position = other.kind in (*_BY_POSITION, Parameter.VAR_POSITIONAL)
        if by_position and Parameter.VAR_POSITIONAL not in kinds:
            return f"{other.name} cannot be passed by position"
        if other.kind in (*_BY_NAME, Parameter.VAR_KEYWORD) and Parameter.VAR_KEYWORD not in kinds:
            return f"{other.name} cannot be passed by name"
    return ""


def _same_default(one: Any, other: Any) -> bool:
    # Of other kinds of objects, == may be anything; defaults that matter are constants.
    return one is other or (type(one) is type(other) and isinstance(one, (str, int, float)) and one == other)
