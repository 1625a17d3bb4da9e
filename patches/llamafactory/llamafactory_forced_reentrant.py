"""LLaMA-Factory chooses ``use_reentrant=True`` where the user says nothing.

What the user sees: ``The parameter N has already been reduced`` (ZeRO-1 and 2), ``Expected to mark a variable
ready only once`` (DDP) or a vision tower that does not train, though ``use_reentrant`` stands nowhere.

Why: its argument ``use_reentrant_gc`` defaults to True and is passed on as if the user had said so. Where
``gradient_checkpointing: true`` stands too, transformers' Trainer switches checkpointing on once more and has
nothing to say of it, for which LLaMA-Factory's method takes True, even after ``use_reentrant_gc: false``.

In every LLaMA-Factory that has the argument, 0.9.2 and later.

The change: the default of the argument is False, in a configuration file and on the command line, and where
nothing is said the second time, what was said of this model before stands, else False. A user's own
``use_reentrant_gc: true`` stands.

Upstream: https://github.com/hiyouga/LLaMA-Factory/blob/main/src/llamafactory/hparams/model_args.py,
https://github.com/hiyouga/LlamaFactory/issues/5981
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from vlmpatch.api import Argument, Code, Patch

NAME = "use_reentrant_gc"
ENABLE = "_gradient_checkpointing_enable"
MODEL, KWARGS = Argument(0, "self"), Argument(1, "gradient_checkpointing_kwargs")
_NONE_IS_TRUE = re.compile(KWARGS.name + r' is None:\s*\w+ = {"use_reentrant": True}')
_DEFAULT = re.compile(NAME + r": bool = field\(\s*default=(\w+)")


def look(code: Code) -> str | None:
    """The argument must be there and be True by default, and the method must take None for True."""
    if code.module.endswith(".checkpointing"):
        true = _NONE_IS_TRUE.search(code.source)
        return None if true else f"{ENABLE} makes no True of nothing said"
    found = _DEFAULT.search(code.source)
    if found is None:
        return f"this LLaMA-Factory has no {NAME}"
    return None if found[1] == "True" else f"{NAME} is {found[1]} by default"


def apply(patch: Patch, module: ModuleType) -> None:
    """Turn the default around in every class of arguments that has it, and what the method makes of None."""
    if hasattr(module, ENABLE):
        patch.wrap(module, ENABLE, _as_said)
        return
    for cls in list(vars(module).values()):
        if not (isinstance(cls, type) and NAME in getattr(cls, "__dataclass_fields__", {})):
            continue
        if "__init__" in vars(cls):  # how a configuration file is read
            patch.set_default(vars(cls)["__init__"], NAME, False)
        fields = cls.__dataclass_fields__  # type: ignore[attr-defined]
        turned = copy.copy(fields[NAME])  # how the command line is read
        turned.default = False
        patch.set_item(fields, NAME, turned)


_said: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()  # of each model, when it was last said


def _as_said(original: Callable[..., None], /, *args: Any, **kwargs: Any) -> None:
    model, said = MODEL.of(args, kwargs), KWARGS.of(args, kwargs)
    if said is None:
        args, kwargs = KWARGS.replaced(args, kwargs, _said.get(model, {"use_reentrant": False}))
    else:
        _said[model] = said
    original(*args, **kwargs)
