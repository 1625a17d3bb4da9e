"""Whether a patch may look at the numbers in a tensor: not all have some, and not everybody may ask."""

from __future__ import annotations

from typing import Any


def is_readable(tensor: Any) -> bool:
    """Whether it has numbers, and no transform, no tracer and no mode of a script's looks on.

    On the meta device and in FakeTensorMode there are none; under vmap a look is an error, under a tracer a
    part of what is traced.
    """
    import torch

    if type(tensor) is not torch.Tensor or torch._C._len_torch_dispatch_stack():
        return False
    with torch._C.DisableTorchFunction():
        return not (tensor.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(tensor))
