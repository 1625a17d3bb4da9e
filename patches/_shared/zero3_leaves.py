"""ZeRO-3's leaves: modules that are gathered and reduced as a whole, and where it puts hooks on modules."""

from __future__ import annotations

from typing import Any

from vlmpatch.api import Argument, Code, Unrecognised

LEAF = "_z3_leaf"  # what marks one
MODULE = Argument(0, "module")  # of that method, and of the offload's constructor
_REGISTER = ("_register_deepspeed_module", "_register_hooks_recursively")  # in 0.15 still the second


def look_at_register(code: Code) -> None:
    """Raises ``Unrecognised`` unless ZeRO-3 puts its hooks on one module at a time."""
    if not any(code.function(f"DeepSpeedZeRoOffload.{name}") for name in _REGISTER):
        raise Unrecognised("DeepSpeedZeRoOffload registers its modules in another way")


def register(offload: type[Any]) -> str:
    """The name of the method of ``DeepSpeedZeRoOffload`` that puts hooks on one module."""
    return next(name for name in _REGISTER if hasattr(offload, name))
