"""What a script's own ``compute_loss``, and what decorates it, does with the number of tokens."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

METHOD, COUNT = "compute_loss", "num_items_in_batch"
STEPS = "gradient_accumulation_steps"
OURS = "vlmpatch."


def layers_of(method: Any) -> Iterator[FunctionType]:
    """``method`` and all that it decorates, the outermost first, without what vlmpatch put around it."""
    while isinstance(method, FunctionType):
        if not str(method.__globals__.get("__name__")).startswith(OURS):
            yield method
        method = getattr(method, "__wrapped__", None)


def text_of(method: Any) -> str:
    """Of every layer."""
    return "\n".join(_source(layer.__code__) for layer in layers_of(method))


def own_layers_of(cls: type, owner: type) -> Iterator[Any]:
    """Every ``compute_loss`` of ``cls`` that a script has put around that of ``owner``."""
    own = itertools.takewhile(lambda base: base is not owner, cls.__mro__)
    return (vars(base)[METHOD] for base in own if METHOD in vars(base))


def divides_itself(cls: type, owner: type) -> bool:
    """Whether one of them divides by steps."""
    return any(STEPS in text_of(method) for method in own_layers_of(cls, owner))


def uses_count(cls: type, trainer: type) -> bool:
    """Whether a ``compute_loss`` of ``cls`` does more with the number than hand it to another.

    Args:
        cls: of a trainer.
        trainer: transformers' own, whose ``compute_loss`` is not looked at; a script may have put another
            class in its place, of which ``cls`` knows nothing.
    """
    methods = own_layers_of(cls, trainer)
    return any(_uses(layer.__code__) for method in methods for layer in layers_of(method))


def divides_by_count(loss: Any) -> bool:
    """Whether a ``loss`` of outputs and labels, a function or an object that is called, uses the number."""
    loss = getattr(loss, "func", loss)  # of a partial
    called = loss if isinstance(loss, FunctionType) else inspect.getattr_static(type(loss), "__call__", None)
    return any(_uses(layer.__code__) for layer in layers_of(getattr(loss, "__func__", called)))


@functools.lru_cache  # by the code: a function may hold a script's models, as a teacher beside a trainer
def _source(code: CodeType) -> str:
    try:
        return textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError):
        return ""


def _uses(code: CodeType) -> bool:
    named = {*code.co_varnames, *code.co_names, *code.co_freevars, *code.co_consts}
    try:
        tree = ast.parse(_source(code))
    except SyntaxError:
        return COUNT in named
    rest = next(
        (n.args.kwarg.arg for n in tree.body if isinstance(n, ast.FunctionDef) and n.args.kwarg), None
    )
    return (
        any(_is_asked_for(node, rest) for node in _outside_of_handing(tree)) if tree.body else COUNT in named
    )


def _is_asked_for(node: ast.AST, rest: str | None) -> bool:
    """Whether ``node`` is the number, or all that came by keyword."""
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Load) and node.id in (COUNT, rest)
    return isinstance(node, ast.Constant) and node.value == COUNT


def _outside_of_handing(node: ast.AST) -> Iterator[ast.AST]:
    """Every node under ``node``, but for calls of a ``compute_loss``."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.Call) and getattr(child.func, "attr", None) == METHOD):
            yield from _outside_of_handing(child)
