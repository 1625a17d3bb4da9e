"""``ModuleNotFoundError: No module named 'transformers.modeling_attn_mask_utils'`` while a model is loaded.

What the user sees: a model with ``trust_remote_code=True`` cannot be loaded any more: MiniCPM-V 2.6, whose
vision tower takes ``_prepare_4d_attention_mask`` from there, and others whose code is of the same time.

Why: transformers makes its masks in ``masking_utils`` now; the old module was deprecated, then removed. The
code in a model's folder is downloaded once and kept.

Since transformers 5.24.0.

The change: where remote code says ``from transformers.modeling_attn_mask_utils import``, a finder behind all
others gives it functions of ours that make the same masks. Nobody else sees a module: a program that asks
whether there is one is told what it is told without vlmpatch, and so is remote code that is prepared for the
import to fail. A module of that name that is there is found before this finder is asked.

Upstream: https://github.com/huggingface/transformers/pull/48476
"""

from __future__ import annotations

import ast
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised, of_file

from .._shared.attention_masks import OFFERED

PARENT, CHILD = "transformers", "modeling_attn_mask_utils"
NAME = f"{PARENT}.{CHILD}"
DOOR, REMOTE = "get_class_in_module", "transformers_modules."
CATCHING = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


def look(code: Code) -> str | None:
    """Remote code must be executed there, and the module's file be gone."""
    if code.function(DOOR) is None:
        raise Unrecognised(f"{code.module} has no {DOOR}")
    if os.path.exists(os.path.join(os.path.dirname(code.path), f"{CHILD}.py")):
        return f"this release has {NAME}"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Answer remote code that imports what is gone."""
    patch.hook(_behind_all_others, _answering(patch))


@functools.cache
def _answering(patch: Patch) -> Callable[..., ModuleSpec | None]:
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name != NAME or not _is_relied_on():
            return None
        text = (
            f"this model's own code imports {NAME}, which transformers removed. It gets functions of vlmpatch"
        )
        patch.warn("asked", f"{text} that make the same masks; today transformers.masking_utils makes them.")
        return ModuleSpec(name, _Loader())  # type: ignore[arg-type]

    return find_spec


def _behind_all_others(find_spec: Callable[..., ModuleSpec | None]) -> _Finder:
    finder = _Finder(find_spec)
    sys.meta_path.append(finder)
    return finder


class _Finder:
    def __init__(self, find_spec: Callable[..., ModuleSpec | None]) -> None:
        self.find_spec = find_spec

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader:
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Lent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """It has all it offers."""


class _Lent(ModuleType):
    """A module that only the statement which asked for it gets to see.

    Between importing it and taking names from it, Python asks it for its ``__path__``.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        for each in OFFERED:
            setattr(self, each.__name__, each)

    def __getattr__(self, name: str) -> Any:
        for place, key in ((sys.modules, NAME), (vars(sys.modules[PARENT]), CHILD)):
            if place.get(key) is self:
                del place[key]
        raise AttributeError(f"module {NAME!r} has no attribute {name!r}")


# --- who asks ------------------------------------------------------------------------------------------


def _is_relied_on() -> bool:
    """Whether what is asked for the module just now is remote code that cannot do without it."""
    asked = itertools.dropwhile(lambda frame: not _importing(frame), _stack())
    frames = [*itertools.dropwhile(_importing, asked)]
    try:
        return any(map(_takes_names, frames[:1])) and not any(map(_prepared, frames))
    except Unrecognised:  # nothing to read: nobody knows
        return False


def _stack() -> list[FrameType]:
    frames, frame = [], sys._getframe().f_back
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _importing(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen importlib.")


def _is_remote(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(REMOTE)


def _nodes(frame: FrameType) -> Iterator[Any]:
    return ast.walk(of_file(frame.f_globals["__name__"], frame.f_code.co_filename).tree)


def _takes_names(frame: FrameType) -> bool:
    """Whether remote code runs ``from transformers.modeling_attn_mask_utils import …`` there."""
    return _is_remote(frame) and any(
        isinstance(node, ast.ImportFrom) and node.module == NAME and _runs(frame, [node])
        for node in _nodes(frame)
    )


def _prepared(frame: FrameType) -> bool:
    """Whether remote code goes on where what it runs there cannot be imported."""
    return _is_remote(frame) and any(_catches(node) and _runs(frame, node.body) for node in _nodes(frame))


def _catches(node: Any) -> bool:
    if isinstance(node, ast.Try):
        return any(each.type is None or _names(each.type) & CATCHING for each in node.handlers)
    return isinstance(node, ast.With) and any("suppress" in _names(each.context_expr) for each in node.items)


def _names(expression: ast.expr) -> set[str]:
    nodes = list(ast.walk(expression))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def _runs(frame: FrameType, statements: Sequence[ast.stmt]) -> bool:
    first, last = statements[0].lineno, statements[-1].end_lineno
    return last is not None and first <= frame.f_lineno <= last
