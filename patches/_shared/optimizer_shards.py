"""What accelerate's checkpoint of an optimizer has, where it was written in shards."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any

STATE = "optimizer.state."  # so begins the name of each tensor of a state in the checkpoint


def folder_of(module: ModuleType, given: Any, number: int) -> str:
    """Where accelerate has put the shards.

    Args:
        module: ``accelerate.utils.fsdp_utils``.
        given: the folder it was told.
        number: of the optimizer.
    """
    name = module.OPTIMIZER_NAME
    return str(given) if name in str(given) else os.path.join(given, f"{name}_{number}")


def saved_in(folder: str) -> set[str]:
    """The names of the parts of states that ``folder`` has; none for an optimizer that keeps no state."""
    from torch.distributed.checkpoint import FileSystemReader

    saved = FileSystemReader(folder).read_metadata().state_dict_metadata
    return {name for name in saved if name.startswith(STATE)}


def whole_in(saved: set[str], state: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of ``state``, by parameter, those of which every part is ``saved``."""
    return {
        name: parts
        for name, parts in state.items()
        if all(f"{STATE}{name}.{part}" in saved for part in parts)
    }
