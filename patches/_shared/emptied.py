"""``zero_grad`` of the model itself, which a DeepSpeed engine around it is not told of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from vlmpatch.api import Patch


def at_zero_grad(
    patch: Patch,
    optimizers: Callable[[], Iterable[Any]],
    drop: Callable[[Any], None],
    groups: str = "bit16_groups",
) -> None:
    """Call ``drop(optimizer)`` where a module drops the gradients of all that a ZeRO optimizer trains.

    Args:
        patch: whose change it is.
        optimizers: those that may have something to drop.
        drop: told of each of these whose parameters are all the module's.
        groups: where an optimizer has these; ZeRO-3's calls them otherwise.
    """
    import torch

    def zero_grad(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if known := list(optimizers()):
            own = {id(parameter) for parameter in self.parameters()}
            for optimizer in known:
                if all(id(parameter) in own for group in getattr(optimizer, groups) for parameter in group):
                    drop(optimizer)
        return original(self, *args, **kwargs)

    patch.wrap(torch.nn.Module, "zero_grad", zero_grad)
