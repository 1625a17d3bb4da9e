"""``The size of tensor a must match the size of tensor b`` where packed texts have no image.

What the user sees: with LLaMA-Factory's ``neat_packing: true`` a model with positions along several axes
(Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5, GLM-4V) trains until a packed row holds texts alone, and then ends
in SDPA: ``RuntimeError: The size of tensor a (520) must match the size of tensor b (528) at non-singleton
dimension 3``. With data that have no image that is the first step.

Why: a row without an image gets a blank one behind it, which no token attends to, and its mask zeros for it.
Where positions of packed texts are made these zeros are put behind the mask once more. So it is longer than
the row. With flash attention no mask is used.

Since LLaMA-Factory 0.9.5, which makes positions text by text.

The change: a mask that was as long as its row before positions are made is the mask afterwards too.

Upstream: https://github.com/hiyouga/LlamaFactory/pull/10283,
https://github.com/hiyouga/LlamaFactory/issues/10452
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch

KIND, NAME = "MultiModalDataCollatorForSeq2Seq", "_compute_rope_position_ids_with_packing"
ROWS, MASK = "input_ids", "attention_mask"
FEATURES = Argument(0, "features")
TWICE = "dummy_image_right_padding_attention_mask"


def look(code: Code) -> str | None:
    """Zeros for the blank must be put behind the mask where positions of packed texts are made."""
    if code.function(f"{KIND}.{NAME}") is None:
        return "this LLaMA-Factory makes no positions of packed texts"
    return None if TWICE in code.source else "a mask is left as long as its row"


def apply(patch: Patch, module: ModuleType) -> None:
    """Hand on the mask that was there, where it was as long as the row."""

    def as_long_as_the_row(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        features = FEATURES.of(args, kwargs)
        mask = features[MASK]
        length = features[ROWS].shape[-1]
        made = original(self, *args, **kwargs)
        if mask.shape[-1] == length != features[MASK].shape[-1]:
            features[MASK] = mask
        return made

    patch.wrap(getattr(module, KIND), NAME, as_long_as_the_row)
