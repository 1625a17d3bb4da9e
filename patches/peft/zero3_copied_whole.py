"""``assert param.ds_status == ZeroParamStatus.AVAILABLE``, with ``'ds_shape': (0,)`` in its summary.

What the user sees: that error in the first forward, where LoRA with ``modules_to_save`` (Qwen-VL's ``wte``
and ``lm_head``) is put on a model that was loaded under ZeRO-3.

Why: PEFT trains a copy of each such module, and copies what this rank holds of it, which under ZeRO-3 is
nothing. The copy is a module of empty weights.

Until PEFT 0.9.0, which gathers before it copies. The change: the module's weights are gathered while PEFT
copies it. The copy is whole on every rank, as PEFT 0.9.0's is, and DeepSpeed partitions it with all else.

Upstream: https://github.com/huggingface/peft/pull/1450, https://github.com/QwenLM/Qwen-VL/issues/103
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.rendezvous import rendezvous
from .._shared.zero3_parameters import any_absent, whole

REMEDY = "Call get_peft_model and add_adapter on every rank, without `if rank == 0`."


def look(code: Code) -> str | None:
    """PEFT must copy without gathering."""
    function = code.function("ModulesToSaveWrapper.update")
    if function is None or "deepcopy" not in function:
        raise Unrecognised("ModulesToSaveWrapper.update copies nothing")
    return "this PEFT gathers before it copies" if "GatheredParameters" in function else None


def apply(patch: Patch, module: ModuleType) -> None:
    """Gather what is copied."""

    def update(original: Callable[..., Any], self: Any, /, adapter_name: str) -> Any:
        copied = self.original_module
        if not any_absent(copied):
            return original(self, adapter_name)
        rendezvous(
            patch, copied.parameters(), f"copying {type(copied).__name__} for modules_to_save", why=REMEDY
        )
        with whole(copied.parameters(), changed=False):
            return original(self, adapter_name)

    patch.wrap(module.ModulesToSaveWrapper, "update", update)
