"""``Trainer.__init__() got an unexpected keyword argument 'tokenizer'``, from MiniCPM-V's trainer.

Why: the argument became ``processing_class`` in transformers 4.46 and the old name went in 5.0, and with
it the attribute ``trainer.tokenizer``, which the script's ``_save`` reads.

Since transformers 5.0.0rc0.

The change: the script's trainer class, and no other, takes ``tokenizer=`` and has ``tokenizer``.

Upstream: https://github.com/huggingface/transformers/pull/32385
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

from ._minicpmv import NOT_THE_SCRIPT, is_script_trainer, trainer_classes

_SAY = "CPMTrainer(tokenizer=...) should say processing_class=..., and self.tokenizer self.processing_class."


def look(code: Code) -> str | None:
    """The module must hold the script's trainer."""
    return None if is_script_trainer(code) else NOT_THE_SCRIPT


def apply(patch: Patch, module: ModuleType) -> None:
    """Teach the script's trainer the old name."""

    def renamed(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        if "tokenizer" in kwargs and "processing_class" not in kwargs:
            kwargs["processing_class"] = kwargs.pop("tokenizer")
            patch.warn("renamed", _SAY)
        original(self, *args, **kwargs)

    for cls in trainer_classes(module):
        patch.wrap(cls, "__init__", renamed)
        if not hasattr(cls, "tokenizer"):
            patch.replace(cls, "tokenizer", property(_get, _set))


def _get(trainer: Any) -> Any:
    return trainer.processing_class


def _set(trainer: Any, value: Any) -> None:
    trainer.processing_class = value
