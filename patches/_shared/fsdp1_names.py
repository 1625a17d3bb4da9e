"""The names that tensors have in a state where FSDP1 holds a part of the module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

UNIT = "_fsdp_wrapped_module"  # the child of a unit of FSDP1
INSIDE = f"{UNIT}."  # what that puts into names
FLAT = "_flat_param"  # all parameters of a unit, which knows their names


def has_units(module: Any) -> bool:
    """Whether a part of ``module`` is a unit of FSDP1."""
    return any(UNIT in part._modules for part in module.modules())


def state_names(module: Any) -> Iterator[str]:
    """The names that ``module.state_dict()`` would have; nothing is gathered for them."""
    for path, part in module.named_modules():
        kept = [*part._parameters, *(part._buffers.keys() - part._non_persistent_buffers_set)]
        own = [name for name in kept if getattr(part, name) is not None and name != FLAT]
        # Without ``use_orig_params`` a module inside has no parameters of its own.
        for name in (*own, *getattr(getattr(part, FLAT, None), "_fqns", ())):
            yield f"{path}.{name}".replace(INSIDE, "").removeprefix(".")
