"""The first save of LoRA with ``modules_to_save`` under FSDP1 hangs, or ends in a mismatch of collectives.

What the user sees: HF Trainer, FSDP1, an adapter with ``modules_to_save``: at the first checkpoint the
ranks wait forever; over gloo they end with ``Received data size doesn't match expected size``.

Why: only the first rank writes the adapter. To know the names of a module that is saved whole PEFT asks it
for ``state_dict()``; PEFT's own policy has made a unit of FSDP of it, which gathers its weights then, and
the other ranks are not there. Where an adapter is loaded all ranks ask, and all but the first are told no
names.

Since PEFT 0.15; 0.21 included.

The change: of such a module the names are taken from what was gathered already, or from its parameters and
buffers.

Upstream: https://github.com/huggingface/peft/issues/2450, the same under DeepSpeed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.fsdp1_names import state_names

CLASS, SAVED, LOADED = "ModulesToSaveWrapper", "adapter_state_dict", "adapter_state_dict_load_map"
ASKED = "self.modules_to_save[adapter_name].state_dict()"
ADAPTER, STATE = Argument(0, "adapter_name"), Argument(1, "state_dict")


def look(code: Code) -> str | None:
    """It must ask the module itself."""
    function = code.function(f"{CLASS}.{SAVED}")
    if function is None:
        raise Unrecognised(f"{CLASS} has no {SAVED}")
    return None if ASKED in function else "this release does not ask the module for its names"


def apply(patch: Patch, module: ModuleType) -> None:
    """Name the tensors of a unit without gathering them."""

    def saved(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        adapter, state = ADAPTER.of(args, kwargs), STATE.of(args, kwargs)
        if _unit(self, adapter) is None:
            return original(self, *args, **kwargs)
        return _within(state, f"modules_to_save.{adapter}.")

    def loaded(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        adapter = ADAPTER.of(args, kwargs)
        unit = _unit(self, adapter)
        if unit is None:
            return original(self, *args, **kwargs)
        return {name: f"modules_to_save.{adapter}.{name}" for name in state_names(unit)}

    patch.wrap(getattr(module, CLASS), SAVED, saved)
    patch.wrap(getattr(module, CLASS), LOADED, loaded)


def _unit(wrapper: Any, adapter: Any) -> Any:
    """The module of ``adapter`` where FSDP1 holds it or a part of it; else None."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    if adapter not in wrapper.modules_to_save:
        return None
    saved = wrapper.modules_to_save[adapter]
    return saved if any(isinstance(part, FSDP) for part in saved.modules()) else None


def _within(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """What lies under ``prefix``, by its name there."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
