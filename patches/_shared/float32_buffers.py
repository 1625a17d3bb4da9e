"""Buffers that transformers keeps in float32 whatever a model's dtype is, and counts on to be whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

HOME = "transformers.models."
FREQUENCIES = "inv_freq"  # of rotary positions; other names end with it
# Classes that compute with them in float32 and bring what comes of it to the dtype of what it meets, there or
# where it is taken. Others have weights meet it as it is (BROS, CLVP, Transformer-XL), which ends in an error
# where these are of another dtype.
COMPUTE = ("RotaryEmbedding", "RotatoryEmbedding", "RopePositionEmbedding", "RelPositionalEncoding")
BIAS = "e_score_correction_bias"  # by which a router chooses experts, as DeepSeek-V3's does


class Buffer(NamedTuple):
    """A buffer of a module, as it was when it was looked for."""

    module: Any
    name: str
    value: Any


def float32_buffers(model: Any) -> Iterator[Buffer]:
    """Those of all of transformers' own modules in ``model``, which compute with them in float32.

    What a module of a script or a checkpoint makes of a buffer of such a name is its own.
    """
    for module in model.modules():
        kind = type(module)
        if str(kind.__module__).startswith(HOME):  # a class may have anything there, or nothing
            computes = kind.__name__.endswith(COMPUTE)
            for name, value in module._buffers.items():
                known = name == BIAS or (computes and name.endswith(FREQUENCIES))
                if known and value is not None and value.is_floating_point():
                    yield Buffer(module, name, value)
