"""A hang, or a gather of other sizes on each rank: a forward that asks Qwen2-VL's tower where it lies.

What the user sees: under ZeRO-3 a script whose own forward makes a blank image for a batch of text, on the
device that ``visual.get_device()`` says, waits forever beside ranks with images, or ends in a gather whose
sizes differ. The Qwen-VL-Series-Finetune scripts have such a forward, which is meant to keep ranks together.

Why: ``get_device`` and ``get_dtype`` look at the weight of the first block's ``fc2``. Whatever reads a
weight that ZeRO-3 holds empty, inside a forward, gathers it; a gather takes every rank, and the others do
not ask.

Since transformers 4.45.0, which brought the model.

The change: where ZeRO-3 holds that weight, it is looked up among the parameters, which gathers nothing.
Device and dtype of an empty weight are those of the whole.

Upstream: https://github.com/2U1/Qwen-VL-Series-Finetune/issues/17
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

OWNER = "Qwen2VisionTransformerPretrainedModel"
ASKED = {"get_device": "device", "get_dtype": "dtype"}
WEIGHT = "self.blocks[0].mlp.fc2.weight"
NAMES = ("weight", "base_layer.weight")  # the latter inside an adapter


def look(code: Code) -> str | None:
    """Both must read the weight as an attribute."""
    functions = [code.function(f"{OWNER}.{name}") for name in ASKED]
    if None in functions:
        raise Unrecognised(f"{OWNER} has no get_device or no get_dtype")
    if any(WEIGHT not in function for function in functions if function is not None):
        return "the tower says where it lies without reading a weight"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Answer for a weight that ZeRO-3 holds without reading it."""
    owner = getattr(module, OWNER)
    for name, said in ASKED.items():
        patch.wrap(owner, name, _answering(said))


def _answering(said: str) -> Callable[..., Any]:
    def asked(original: Callable[..., Any], self: Any, /) -> Any:
        weight = held_by_zero3(self)
        return original(self) if weight is None else getattr(weight, said)

    return asked


def held_by_zero3(tower: Any) -> Any:
    """The weight that is asked for, or None where ZeRO-3 does not hold it."""
    found = (weight for name, weight in tower.blocks[0].mlp.fc2.named_parameters() if name in NAMES)
    weight = next(found, None)
    return weight if hasattr(weight, "ds_id") else None
