"""``MiniCPMV.__init__() got an unexpected keyword argument 'init_vision'``.

Why: MiniCPM-V's fine-tune script was changed for MiniCPM-o, whose configuration knows ``init_vision``,
``init_audio`` and ``init_tts``. The configuration of MiniCPM-V does not, so transformers hands them to
the model, which takes none of them.

With every transformers, since commit 53c0174 of the script.

The change: the model's class drops the three arguments. ``init_vision=True`` is what it always does.
What it cannot do (audio, speech, no vision) is said.

Upstream: https://github.com/OpenBMB/MiniCPM-V/commit/53c0174
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

from .._shared.minicpmv import NOT_THE_MODEL, has_model

# The parts of MiniCPM-o, and whether MiniCPM-V has them.
_PARTS = {"init_vision": True, "init_audio": False, "init_tts": False}


def look(code: Code) -> str | None:
    """The class must not know the arguments itself."""
    if not has_model(code):
        return NOT_THE_MODEL
    function = code.function("MiniCPMV.__init__")
    known = set(function.parameters if function else ())
    if known & {*_PARTS, "kwargs"}:
        return "MiniCPMV.__init__ takes these arguments itself"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Drop the arguments before they reach the class."""

    def without_parts(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> None:
        asked = {name: kwargs.pop(name) for name in _PARTS if name in kwargs}
        wrong = [f"{name}={value}" for name, value in asked.items() if bool(value) is not _PARTS[name]]
        if wrong:
            patch.warn("impossible", f"{', '.join(wrong)} has no effect: MiniCPM-V always has vision only.")
        elif asked:
            patch.warn("dropped", f"{', '.join(asked)} are for MiniCPM-o; leave them out for MiniCPM-V.")
        original(self, *args, **kwargs)

    patch.wrap(module.MiniCPMV, "__init__", without_parts)
