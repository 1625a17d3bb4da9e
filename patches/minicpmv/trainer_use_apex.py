"""``'CPMTrainer' object has no attribute 'use_apex'``.

Why: MiniCPM-V's trainer asks ``self.use_apex`` in its own ``training_step``. transformers 5.0 dropped
apex and the attribute.

Since transformers 5.0.0rc0.

The change: the script's trainer class, and no other, has ``use_apex = False``.

Upstream: https://github.com/OpenBMB/MiniCPM-V/blob/main/finetune/trainer.py
"""

from __future__ import annotations

from types import ModuleType

from vlmpatch.api import Code, Patch

from .._shared.minicpmv import NOT_THE_SCRIPT, is_script_trainer, trainer_classes


def look(code: Code) -> str | None:
    """The script's trainer must ask for it."""
    if not is_script_trainer(code):
        return NOT_THE_SCRIPT
    if "self.use_apex" not in code.source:
        return "this trainer does not ask for use_apex"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Answer no."""
    for cls in trainer_classes(module):
        if not hasattr(cls, "use_apex"):
            patch.replace(cls, "use_apex", False)
            patch.warn("gone", "transformers has no apex any more; drop `if self.use_apex:` and its branch.")
