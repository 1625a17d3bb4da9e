"""Buffers that transformers keeps in float32 whatever a model's dtype is, and counts on to be whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

HOME = "transformers.models."
FREQUENCIES = "inv_freq"  # of rotary positions; other names end with it
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
        if str(type(module).__module__).startswith(HOME):  # a class may have anything there, or nothing
            for name, value in module._buffers.items():
                known = name.endswith(FREQUENCIES) or name == BIAS
                if known and value is not None and value.is_floating_point():
                    yield Buffer(module, name, value)
