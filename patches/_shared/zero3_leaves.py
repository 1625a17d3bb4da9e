"""ZeRO-3's leaves: modules that are gathered and reduced as a whole, and where it puts hooks on modules."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from vlmpatch.api import Argument, Code, Unrecognised, signature

LEAF = "_z3_leaf"  # what marks one
MODULE = Argument(0, "module")  # of that method, and of the offload's constructor
FORWARD = "forward"
_REGISTER = ("_register_deepspeed_module", "_register_hooks_recursively")  # in 0.15 still the second
_MADE = (ast.Dict, ast.DictComp, ast.List, ast.ListComp)
_IN_PLACE = re.compile(r"[a-z]\w*[^_]_")  # as torch calls what it does in place

_read: WeakKeyDictionary[type, list[tuple[FunctionType, ast.FunctionDef]]] = WeakKeyDictionary()
ours: WeakSet[Any] = WeakSet()  # leaves that nobody asked for


def look_at_register(code: Code) -> None:
    """Raises ``Unrecognised`` unless ZeRO-3 puts its hooks on one module at a time."""
    if not any(code.function(f"DeepSpeedZeRoOffload.{name}") for name in _REGISTER):
        raise Unrecognised("DeepSpeedZeRoOffload registers its modules in another way")


def register(offload: type[Any]) -> str:
    """The name of the method of ``DeepSpeedZeRoOffload`` that puts hooks on one module."""
    return next(name for name in _REGISTER if hasattr(offload, name))


# --- what can be one ----------------------------------------------------------------------------------


def may_be_leaf(model: Any, name: str) -> bool:
    """Whether all of a module happens inside calls of it, through tensors that torch's hooks see.

    Its parts have no hooks of their own once it is a leaf, so none may be called from outside; and its
    backward is noticed by tensors that it is handed and returns, by themselves or in a tuple.

    Args:
        model: that holds it.
        name: of it in ``model``.
    """
    module: Any = model.get_submodule(name)
    if not _takes_tensors(module) or _hides_its_result(type(module)):
        return False
    parts = frozenset({*module._modules, *_own(type(module))} - {FORWARD})
    names = name.split(".") if name else []
    around: list[Any] = [model.get_submodule(".".join(names[:end])) for end in range(len(names))]
    return not any(_reaches_into(type(each), parts, frozenset(names[-2:])) for each in around)


def _takes_tensors(module: Any) -> bool:
    """Whether a tensor may come by its place: torch's hooks see no keywords."""
    kinds = [parameter.kind for parameter in signature(module.forward).parameters.values()]
    return bool(kinds) and kinds[0] in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )


def _hides_its_result(cls: type) -> bool:
    """Whether what ``cls`` returns may be no tensor and no tuple, but what holds some."""
    return any(
        _holds(value, method, function.__globals__)
        for function, method in _reached(cls)
        for node in ast.walk(method)
        if isinstance(node, ast.Return) and node.value is not None
        for value in (node.value.elts if isinstance(node.value, ast.Tuple) else [node.value])
    )


def _holds(value: ast.expr, method: ast.FunctionDef, known: Mapping[str, Any]) -> bool:
    if isinstance(value, ast.Name):
        assigned = [node for node in ast.walk(method) if isinstance(node, ast.Assign)]
        given = [node.value for node in assigned if _is_name(node.targets[0], value.id)]
        return any(_is_made(each, known) for each in given)
    return _is_made(value, known)


def _is_name(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name


def _is_made(value: ast.expr, known: Mapping[str, Any]) -> bool:
    """Whether ``value`` is a dictionary, a list or an object of a class."""
    if isinstance(value, _MADE):
        return True
    if not isinstance(value, ast.Call):
        return False
    first, *rest = ast.unparse(value.func).split(".")
    found = known.get(first, {"dict": dict, "list": list}.get(first))
    for name in rest:
        try:
            found = getattr(found, name, None)
        except Exception:  # a module that imports only now what is asked of it, and cannot
            return False
    return isinstance(found, type) and (dataclasses.is_dataclass(found) or issubclass(found, (dict, list)))


def writes_into_input(module: Any) -> bool:
    """Whether the forward of ``module`` may write into the first thing that it is handed."""
    forward = next((method for _, method in _reached(type(module)) if method.name == FORWARD), None)
    if forward is None:
        return False
    first = next(iter(signature(module.forward).parameters))
    return any(
        (isinstance(node, ast.AugAssign) and _is_name(node.target, first))
        or (
            isinstance(node, ast.Attribute) and _is_name(node.value, first) and _IN_PLACE.fullmatch(node.attr)
        )
        for node in ast.walk(forward)
    )


def _reaches_into(cls: type, parts: frozenset[str], held: frozenset[str]) -> bool:
    """Whether the forward of ``cls`` may call one of ``parts`` of a module inside it.

    Args:
        cls: of a module around that one.
        parts: the names of its methods and modules.
        held: by which it may be held; its ``forward`` alone passes its hooks by.
    """
    reads = [
        node for _, method in _reached(cls) for node in ast.walk(method) if isinstance(node, ast.Attribute)
    ]
    return any(
        (read.attr in parts and not _is_name(read.value, "self"))
        or (read.attr == FORWARD and getattr(read.value, "attr", None) in held)
        for read in reads
    )


def _reached(cls: type) -> list[tuple[FunctionType, ast.FunctionDef]]:
    """The forward of ``cls`` and those of its methods that it calls, as far as they can be read."""
    if cls not in _read:
        _read[cls] = [*_followed(cls)]
    return _read[cls]


def _followed(cls: type) -> Iterator[tuple[FunctionType, ast.FunctionDef]]:
    own, names = _own(cls), [FORWARD]
    for name in names:
        if (function := own.get(name)) is None:
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        except (OSError, TypeError, SyntaxError):
            continue
        for method in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
            yield inspect.unwrap(function), method
            read = (node.attr for node in ast.walk(method) if isinstance(node, ast.Attribute))
            names += (attr for attr in read if attr in own and attr not in names)


def _own(cls: type) -> dict[str, FunctionType]:
    """The methods of ``cls`` that are not torch's."""
    bases = (base for base in cls.__mro__ if not str(base.__module__).startswith(("torch.", "builtins")))
    every = {name: value for base in reversed([*bases]) for name, value in vars(base).items()}
    return {name: value for name, value in every.items() if isinstance(value, FunctionType)}


# --- what one is called with --------------------------------------------------------------------------


def by_place(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call of ``module``, with each keyword in its place: what torch's and DeepSpeed's hooks see."""
    try:
        bound = signature(module.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):  # the call will say so itself
        return args, kwargs
    return bound.args, bound.kwargs
