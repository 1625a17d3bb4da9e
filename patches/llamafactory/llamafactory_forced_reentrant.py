"""LLaMA-Factory chooses ``use_reentrant=True`` where the user says nothing.

What the user sees: ``The parameter N has already been reduced`` (ZeRO-1 and 2), ``Expected to mark a variable
ready only once`` (DDP) or a vision tower that does not train, though ``use_reentrant`` stands nowhere.

Why: its argument ``use_reentrant_gc`` defaults to True and is passed on as if the user had said so.

In every LLaMA-Factory that has the argument, 0.9.2 and later.

The change: the default of the argument is False, in a configuration file and on the command line. A user's
own ``use_reentrant_gc: true`` stands.

Upstream: https://github.com/hiyouga/LLaMA-Factory/blob/main/src/llamafactory/hparams/model_args.py,
https://github.com/hiyouga/LlamaFactory/issues/5981
"""

from __future__ import annotations

import copy
import re
from types import ModuleType

from vlmpatch.api import Code, Patch

NAME = "use_reentrant_gc"
_DEFAULT = re.compile(NAME + r": bool = field\(\s*default=(\w+)")


def look(code: Code) -> str | None:
    """The argument must be there and be True by default."""
    found = _DEFAULT.search(code.source)
    if found is None:
        return f"this LLaMA-Factory has no {NAME}"
    return None if found[1] == "True" else f"{NAME} is {found[1]} by default"


def apply(patch: Patch, module: ModuleType) -> None:
    """Turn the default around in every class of arguments that has it."""
    for cls in list(vars(module).values()):
        if not (isinstance(cls, type) and NAME in getattr(cls, "__dataclass_fields__", {})):
            continue
        if "__init__" in vars(cls):  # how a configuration file is read
            patch.set_default(vars(cls)["__init__"], NAME, False)
        fields = cls.__dataclass_fields__  # type: ignore[attr-defined]
        turned = copy.copy(fields[NAME])  # how the command line is read
        turned.default = False
        patch.set_item(fields, NAME, turned)
