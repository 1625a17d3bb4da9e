"""MiniCPM-V's script trains under ZeRO-3 and then waits forever in its last save.

Why: ``safe_save_model_for_hf_trainer`` calls ``save_model`` on local rank 0 only. Under ZeRO-3 every rank
holds a part of each parameter, so saving gathers, and a gather needs every rank.

With every DeepSpeed.

The change: ``save_state()``, which the script calls on every rank just before, gathers the weights;
``save_model()`` in the same step uses them and gathers nothing. Only the script's trainer does so.

Upstream: https://github.com/OpenBMB/MiniCPM-V/blob/main/finetune/finetune.py
"""

from __future__ import annotations

from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from vlmpatch.api import Code, Patch

from .._shared.minicpmv import NOT_THE_SCRIPT, is_script_trainer, trainer_classes

_GATHER = "_zero3_consolidated_16bit_state_dict"
_SAY = "safe_save_model_for_hf_trainer should call trainer.save_model() on every rank; only rank 0 writes."


def look(code: Code) -> str | None:
    """The module must hold the script's trainer."""
    return None if is_script_trainer(code) else NOT_THE_SCRIPT


def apply(patch: Patch, module: ModuleType) -> None:
    """Gather while every rank is there."""
    gathered: WeakKeyDictionary[Any, tuple[int, Any]] = WeakKeyDictionary()  # by trainer: step, weights

    def save_state(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        engine = _engine(self)
        if engine is not None and patch.active:
            gathered[self] = (self.state.global_step, getattr(engine, _GATHER)())
            patch.warn("gathered", _SAY)
        return result

    def save_model(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
        step, weights = gathered.pop(self, (-1, None))
        engine = _engine(self)
        if engine is None or step != self.state.global_step:
            return original(self, *args, **kwargs)
        with patch.swapped(engine, _GATHER, lambda *_args, **_kwargs: weights):
            return original(self, *args, **kwargs)

    for cls in trainer_classes(module):
        patch.wrap(cls, "save_state", save_state)
        patch.wrap(cls, "save_model", save_model)


def _engine(trainer: Any) -> Any:
    """The trainer's DeepSpeed engine, when its weights are partitioned and may be gathered to be saved."""
    engine: Any = getattr(trainer, "model_wrapped", None)
    if not hasattr(engine, _GATHER) or not engine.zero_optimization_partition_weights():
        return None
    return engine if engine.zero_gather_16bit_weights_on_model_save() else None
