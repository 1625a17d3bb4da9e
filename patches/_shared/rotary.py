"""Frequencies of rotary positions, which transformers keeps in float32 whatever a model's dtype is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

HOME, NAME = "transformers.models.", "inv_freq"


class Frequencies(NamedTuple):
    """A buffer of a module, as it was when it was looked for."""

    module: Any
    name: str
    buffer: Any


def frequencies(model: Any) -> Iterator[Frequencies]:
    """Those of all of transformers' own modules in ``model``, which multiply them in float32.

    What a module of a script or a checkpoint makes of a buffer of that name is its own.
    """
    for module in model.modules():
        if type(module).__module__.startswith(HOME):
            for name, buffer in module._buffers.items():
                if name.endswith(NAME) and buffer is not None and buffer.is_floating_point():
                    yield Frequencies(module, name, buffer)
