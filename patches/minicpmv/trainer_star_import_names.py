"""``NameError: name 'Union' is not defined`` (or Dict, List, Tuple …) in MiniCPM-V's ``trainer.py``.

Why: the script's trainer takes the names of ``typing`` from ``from transformers.trainer import *``.
transformers drops them as it moves to built-in generics: Dict, List and Tuple in 4.50.0, Union in 5.2.0.

Since transformers 4.50.0.

The change: when a ``trainer.py`` beside the running script misses such names, ``transformers.trainer``
has them. Any other process sees nothing.

Upstream: https://github.com/OpenBMB/MiniCPM-V/blob/main/finetune/trainer.py
"""

from __future__ import annotations

import contextlib
import os
from types import ModuleType

from vlmpatch.api import Code, Patch, Unrecognised, of_file

from ._minicpmv import is_script_trainer, script_folders
from ._star_imports import lost_typing_names

_NAMES = frozenset({"Any", "Callable", "Dict", "List", "Optional", "Tuple", "Type", "Union"})


def look(code: Code) -> str | None:
    """Names must be gone from transformers, and the script must want them."""
    if code.names >= _NAMES - {"Type"}:
        return "transformers.trainer still has the names of typing"
    if not _scripts():
        return "no trainer.py beside the running script takes names from transformers.trainer"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Give ``transformers.trainer`` back the names the script's trainer counts on."""
    for script in _scripts():
        lost = lost_typing_names(script.tree, module.__name__, set(vars(module)))
        for name, value in lost.items():
            patch.replace(module, name, value)
        if lost:
            names = ", ".join(lost)
            patch.warn("names", f"{script.path} should say `from typing import {names}`.")


def _scripts() -> list[Code]:
    found = []
    for folder in script_folders():
        path = os.path.join(folder, "trainer.py")
        if os.path.isfile(path):
            with contextlib.suppress(Unrecognised):  # what cannot be read is not the script
                code = of_file("trainer", path)
                if "from transformers.trainer import *" in code.source and is_script_trainer(code):
                    found.append(code)
    return found
