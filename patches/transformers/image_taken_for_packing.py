"""Nothing is seen: without an attention mask a row with an image is taken for rows packed into one.

What the user sees: no error. Qwen2-VL and Qwen2.5-VL on transformers 4.54 to 4.56, or Qwen3-VL on 4.57 to
5.2, trained on batches without ``attention_mask`` (one row each, as loops of one's own have them) with
``use_cache=False``, as scripts say beside checkpointing: gradients are about 100 % off. With a mask, or with
the cache, they are right.

Why: without a mask and a cache, rows that were packed are looked for where positions do not count on, and
what is looked at are the temporal positions, which stand still in an image. So every token of an image, and
the text behind it, attends to nothing before it.

Since transformers 4.54.0, until 4.57.0 for Qwen2-VL, Qwen2.5-VL and Qwen2.5-Omni; for Qwen3-VL, its mixture
of experts and Qwen3-Omni since they came in 4.57.0, until 5.3.0.

The change: where three rows of positions come without a mask, a fourth is put before them, by which rows are
told apart: in a batch row with an image it counts from where all three are 0, as packed rows begin. Positions
of texts are looked at as before. Flash attention, which finds rows by their zeros, is left alone.

Upstream: https://github.com/huggingface/transformers/pull/40490,
https://github.com/huggingface/transformers/pull/44158
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

KINDS = {
    "qwen2_vl": "Qwen2VLTextModel",
    "qwen2_5_vl": "Qwen2_5_VLTextModel",
    "qwen2_5_omni": "Qwen2_5OmniThinkerTextModel",
    "qwen3_vl": "Qwen3VLTextModel",
    "qwen3_vl_moe": "Qwen3VLMoeTextModel",
    "qwen3_omni_moe": "Qwen3OmniMoeThinkerTextModel",
}
BRANCH = "position_ids.shape[0] == 4"  # where positions come with those of the text
TEMPORAL = "else:\n            text_position_ids = position_ids[0]"
AXES = 3
MASK, POSITIONS = Argument(1, "attention_mask"), Argument(2, "position_ids")


def look(code: Code) -> str | None:
    """The first of three rows must stand for the text's own."""
    name = f"{kind_of(code.module)}.forward"
    function = code.function(name)
    if function is None:
        raise Unrecognised(f"{code.module} has no {name}")
    if BRANCH not in function:
        return "positions of texts are not told apart from those of images"
    return None if TEMPORAL in function else "rows are not looked for in temporal positions"


def apply(patch: Patch, module: ModuleType) -> None:
    """Say which positions are the text's."""

    def forward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        flash = "flash" in str(self.config._attn_implementation)
        positions = POSITIONS.of(args, kwargs)
        if not flash and MASK.of(args, kwargs) is None and _of_axes(positions):
            args, kwargs = POSITIONS.replaced(args, kwargs, with_text(positions))
        return original(self, *args, **kwargs)

    patch.wrap(getattr(module, kind_of(module.__name__)), "forward", forward)


def kind_of(module: str) -> str:
    """The class of a module of transformers' that looks for packed rows."""
    return KINDS[module.split(".")[2]]


def _of_axes(positions: Any) -> bool:
    return positions is not None and positions.ndim == AXES and positions.shape[0] == AXES


def with_text(positions: Any) -> Any:
    """Positions along three axes, shape ``[3, batch, length]``, and before them those of the text."""
    import torch

    places = torch.arange(positions.shape[-1], device=positions.device).expand_as(positions[0])
    begun = torch.where((positions == 0).all(dim=0), places, 0).cummax(dim=-1).values
    pictured = (positions != positions[:1]).any(dim=0).any(dim=-1, keepdim=True)
    text = torch.where(pictured, places - begun, positions[0])
    return torch.cat([text[None], positions])
