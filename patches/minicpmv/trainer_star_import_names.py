"""``NameError: name 'Union' is not defined`` (or Dict, List, Tuple …) in MiniCPM-V's ``trainer.py``.

Why: the script's trainer takes the names of ``typing`` from ``from transformers.trainer import *``.
transformers drops them as it moves to built-in generics: Dict, List and Tuple in 4.50.0, Union in 5.2.0.

Since transformers 4.50.0.

The change: the script's trainer, and no other module, has such names before its code runs, whatever
imports it: the script, a notebook, ``runpy``, another program.

Upstream: https://github.com/OpenBMB/MiniCPM-V/blob/main/finetune/trainer.py
"""

from __future__ import annotations

import importlib
from types import ModuleType

from vlmpatch.api import Code, Patch, of_module

from .._shared.minicpmv import NOT_THE_SCRIPT, is_script_trainer
from .._shared.star_imports import lost_typing_names, star_imports

_PROVIDER = "transformers.trainer"


def look(code: Code) -> str | None:
    """The script's trainer must take everything from transformers' trainer."""
    if not is_script_trainer(code):
        return NOT_THE_SCRIPT
    if _PROVIDER not in star_imports(code.tree):
        return f"this trainer has no star import from {_PROVIDER}"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Give the trainer the names it will miss."""
    provider = importlib.import_module(_PROVIDER)  # the trainer is about to import it
    code = of_module(module)
    lost = lost_typing_names(code.tree, _PROVIDER, set(vars(provider)))
    for name, value in lost.items():
        patch.replace(module, name, value)
    if lost:
        patch.warn("names", f"{code.path} should say `from typing import {', '.join(lost)}`.")
