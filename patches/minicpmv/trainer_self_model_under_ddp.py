"""Nothing is seen: under plain DDP every rank trains its own model.

Why: MiniCPM-V's ``compute_loss`` calls ``self.model`` and not the model it is given, which is the one
DDP wraps. DDP's forward never runs, so its reducer is never armed and no gradient is reduced.

With every transformers, whenever the script runs on several ranks without DeepSpeed.

The change: while the script's ``compute_loss`` runs under DDP, ``self.model`` stands for the wrapped
model when it is called. A script that calls only parts of the model (before August 2024) cannot be led
through DDP's forward; it is stopped with an error.

Upstream: https://github.com/OpenBMB/MiniCPM-V/blob/main/finetune/trainer.py
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch

from .._shared.minicpmv import NOT_THE_SCRIPT, is_script_trainer, trainer_classes

MODEL = Argument(0, "model")
_STOPPED = (
    "compute_loss uses parts of self.model under DistributedDataParallel, so no gradient would ever be "
    "reduced and every rank would train a model of its own. Call the model that compute_loss is given, "
    "or launch with DeepSpeed."
)


def look(code: Code) -> str | None:
    """The module must hold a trainer that ignores the model it is given."""
    return None if is_script_trainer(code) else NOT_THE_SCRIPT


def apply(patch: Patch, module: ModuleType) -> None:
    """Lead calls of ``self.model`` through DDP."""
    from torch.nn.parallel import DistributedDataParallel

    def through_ddp(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
        model = MODEL.of(args, kwargs)
        if not isinstance(model, DistributedDataParallel) or self.model is model:
            return original(self, *args, **kwargs)
        stand_in = _through(self.model, model)
        with patch.swapped(self, "model", stand_in):
            result = original(self, *args, **kwargs)
        if not stand_in._self_called:
            raise RuntimeError(f"{type(self).__name__}.{_STOPPED} (vlmpatch: {patch.id})")
        patch.warn("reduced", f"{type(self).__name__}.compute_loss should call `model`, not `self.model`.")
        return result

    for cls in trainer_classes(module):
        patch.wrap(cls, "compute_loss", through_ddp)


def _through(own: Any, wrapped: Any) -> Any:
    """``own`` to look at, ``wrapped`` to call."""
    import wrapt

    proxy: Any = wrapt.ObjectProxy

    class ThroughDdp(proxy):  # type: ignore[misc]
        _self_called = False

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            self._self_called = True
            return wrapped(*args, **kwargs)

        @property
        def base_model(self) -> Any:
            """What the script calls when LoRA is on; calling the whole comes to the same."""
            return self

    return ThroughDdp(own)
