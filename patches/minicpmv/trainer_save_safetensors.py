"""``'TrainingArguments' object has no attribute 'save_safetensors'``, when MiniCPM-V's trainer saves.

Why: the script's ``_save`` passes ``self.args.save_safetensors`` on. transformers 5.0 always saves
safetensors and dropped the argument.

Since transformers 5.0.0rc0.

The change: the arguments object of the script's trainer, and no other, has ``save_safetensors = True``.

Upstream: https://github.com/OpenBMB/MiniCPM-V/blob/main/finetune/trainer.py
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

from .._shared.minicpmv import NOT_THE_SCRIPT, is_script_trainer, trainer_classes


def look(code: Code) -> str | None:
    """The script's trainer must ask for it."""
    if not is_script_trainer(code):
        return NOT_THE_SCRIPT
    if "args.save_safetensors" not in code.source:
        return "this trainer does not ask for save_safetensors"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Answer as transformers behaves."""

    def with_answer(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not hasattr(self.args, "save_safetensors"):
            patch.replace(self.args, "save_safetensors", True)
            patch.warn(
                "gone", "self.args.save_safetensors is gone, everything is saved as safetensors; drop it."
            )

    for cls in trainer_classes(module):
        patch.wrap(cls, "__init__", with_answer)
