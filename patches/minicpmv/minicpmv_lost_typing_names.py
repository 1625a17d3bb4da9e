"""``NameError: name 'List' is not defined`` while MiniCPM-V's ``resampler.py`` is imported.

Why: the remote code takes ``List`` from ``from torch.nn.functional import *``. torch re-exported it by
accident until it moved to built-in generics.

Since torch 2.7 (2.6.0's ``torch.nn.functional`` has the name, 2.7.1's has not); the code is looked at,
because the model's folder is downloaded once and kept.

The change: while remote code is executed that imports a resampler from beside it, and that misses such a
name, ``torch.nn.functional`` has it, and no longer. Nobody else sees anything: a file of that name that an
earlier model left in the folder is not meant.

Upstream: https://huggingface.co/openbmb/MiniCPM-V-2_6/blob/main/resampler.py
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised, of_file

from .._shared.star_imports import lost_typing_names

_SOURCE = "torch.nn.functional"
_DOOR = "get_class_in_module"
PATH = Argument(1, "module_path")


def look(code: Code) -> str | None:
    """Remote code must be executed where this patch can see its folder."""
    function = code.function(_DOOR)
    if function is None or function.parameters[:2] != ("class_name", "module_path"):
        raise Unrecognised(f"{_DOOR} has other parameters")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Look at the folder of each remote module before it runs."""

    def with_names(original: Any, /, *args: Any, **kwargs: Any) -> Any:
        module_path = PATH.of(args, kwargs, "")
        with _given_back(patch, os.path.join(module.HF_MODULES_CACHE, os.fspath(module_path))):
            return original(*args, **kwargs)

    patch.wrap(module, _DOOR, with_names)


@contextlib.contextmanager
def _given_back(patch: Patch, remote: str) -> Iterator[None]:
    functional = importlib.import_module(_SOURCE)
    lost = _lost_names(remote, set(vars(functional)))
    if lost:
        names = ", ".join(lost)
        patch.warn("names", f"resampler.py should say `from typing import {names}`.")
    with contextlib.ExitStack() as names_are_there:
        for name, value in lost.items():
            names_are_there.enter_context(patch.swapped(functional, name, value))
        yield


def _lost_names(remote: str, provided: set[str]) -> dict[str, Any]:
    try:
        if "from .resampler import" not in of_file("remote", remote).source:
            return {}
        code = of_file("resampler", os.path.join(os.path.dirname(remote), "resampler.py"))
        return lost_typing_names(code.tree, _SOURCE, provided) if _SOURCE in code.source else {}
    except Unrecognised:  # no such file, or none that can be read: not the one meant
        return {}
