"""``NameError: name 'Union' is not defined`` (or Dict, List, Tuple …) in MiniCPM-V's ``trainer.py``.

Why: the script's trainer takes the names of ``typing`` from ``from transformers.trainer import *``.
transformers drops them as it moves to built-in generics: Dict, List and Tuple in 4.50.0, Union in 5.2.0.

Since transformers 4.50.0.

The change: when a ``trainer.py`` beside the running script, or beside a file that is importing
transformers right now (the script in a notebook, under ``runpy``, or imported by another program), misses
such names, ``transformers.trainer`` has them. Any other process sees nothing.

Upstream: https://github.com/OpenBMB/MiniCPM-V/blob/main/finetune/trainer.py
"""

from __future__ import annotations

import contextlib
import os
import sys
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


def _importing_folders() -> list[str]:
    """Where the files lie whose import statements led here, nearest first."""
    folders: dict[str, None] = {}
    frame = sys._getframe()
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        path = frame.f_globals.get("__file__")
        if isinstance(path, str) and frame.f_code.co_name == "<module>":
            folders[os.path.dirname(os.path.abspath(path))] = None
    return list(folders)


def _scripts() -> list[Code]:
    found = []
    for folder in dict.fromkeys([*script_folders(), *_importing_folders()]):
        path = os.path.join(folder, "trainer.py")
        if os.path.isfile(path):
            with contextlib.suppress(Unrecognised):  # what cannot be read is not the script
                code = of_file("trainer", path)
                if "from transformers.trainer import *" in code.source and is_script_trainer(code):
                    found.append(code)
    return found
