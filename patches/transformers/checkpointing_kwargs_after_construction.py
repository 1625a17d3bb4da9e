"""Nothing is seen: ``args.gradient_checkpointing_kwargs = {...}`` after construction has no effect.

Why: from 5.23.0 the Trainer reads ``activation_checkpointing_kwargs``; the old name is copied to it once,
when the arguments are made. A script that assigns the old name later, as MiniCPM-V's does, is not heard.

Since transformers 5.23.0.

The change: when training starts, an old name that was assigned since takes effect. A warning names the new
one where that changes anything: TRL assigns what is the default anyway.

Upstream: https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/training_args.py
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

_OLD, _NEW = "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"
_DEFAULT = {"use_reentrant": False}


def look(code: Code) -> str | None:
    """The Trainer must read the new name only."""
    if f"args.{_NEW}" not in code.source:
        return f"the Trainer does not read {_NEW}"
    if code.function("Trainer.train") is None:
        raise Unrecognised("Trainer has no train()")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Copy the old name over the new one when they differ."""

    def heard(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
        old, new = getattr(self.args, _OLD, None), getattr(self.args, _NEW, None)
        if old is not None and old != new:
            patch.replace(self.args, _NEW, old)
            if {**_DEFAULT, **old} != {**_DEFAULT, **(new or {})}:
                patch.warn("late", f"args.{_OLD} was assigned after construction; assign args.{_NEW}.")
        return original(self, *args, **kwargs)

    patch.wrap(module.Trainer, "train", heard)
