"""Nothing is seen: packed texts attend to one another where a model has positions along three axes.

What the user sees: no error. Texts packed into one row and told apart by ``position_ids`` of shape
``[1, length]`` that begin again at 0 (``DataCollatorWithFlattening``, TRL's ``padding_free``), without an
attention mask, train as one long text in Qwen2-VL, Qwen2.5-VL, GLM-4V and others: gradients are 81 to 142 %
off those of the texts by themselves. Qwen3-VL and plain language models are right.

Why: the model makes three rows of such positions, one an axis, and looks for packed rows only where a fourth
came before them. It hands its layers no positions then either, so that flash attention finds no rows.

Since transformers 4.57.0 for Qwen2-VL, Qwen2.5-VL and Qwen2.5-Omni, which looked for rows in the first of the
three until then, and images were taken for rows by it. GLM-4V, GLM-4V-MoE, GLM-Image, GLM-OCR, Ernie 4.5 VL
and PaddleOCR-VL since 5.0 or since they came, Cosmos3-Edge and HY-V4-VL since they came; 5.24 has it still.
Qwen3-VL makes four rows of them since 5.3.

The change: where such positions come without a mask and without a cache, each break is at a 0 and one at
least comes after a position above 0, they are handed on as four rows, the text's own first, as Qwen3-VL does.
The positions of every axis are those they were. Positions with gaps, all of them zero, a mask, a cache, three
or four rows, a model that is being compiled or traced, and positions without numbers see no change.

Upstream: https://github.com/huggingface/transformers/pull/40490,
https://github.com/huggingface/transformers/pull/44158
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised, signature

from .._shared.compiling import compiling
from .._shared.packed_positions import begin_again

KINDS = {
    "qwen2_vl": "Qwen2VLTextModel",
    "qwen2_5_vl": "Qwen2_5_VLTextModel",
    "qwen2_5_omni": "Qwen2_5OmniThinkerTextModel",
    "glm4v": "Glm4vTextModel",
    "glm4v_moe": "Glm4vMoeTextModel",
    "glm_image": "GlmImageTextModel",
    "glm_ocr": "GlmOcrTextModel",
    "ernie4_5_vl_moe": "Ernie4_5_VLMoeTextModel",  # under another name until transformers 5.3
    "paddleocr_vl": "PaddleOCRTextModel",
    "cosmos3_edge": "Cosmos3EdgeTextModel",
    "hy_v4_vl": "HYV4VLTextModel",
}
EARLIER = {"Ernie4_5_VLMoeTextModel": "Ernie4_5_VL_MoeTextModel"}
FOUR = "position_ids.shape[0] == 4"  # where positions come with those of the text
ALONG_AXES = "position_ids = position_ids[None, ...].expand(3, "
LOOKED_FOR = "else:\n            text_position_ids = position_ids[0]"  # in those of the first axis
AXES = 3
POSITIONS = Argument(2, "position_ids")
TOLD = ("attention_mask", "past_key_values", "cache")  # the last from transformers 5.24 on


def look(code: Code) -> str | None:
    """Three rows must be made of one, and a fourth must be what packed rows are known by."""
    kind = kind_of(code.module)
    function = code.function(f"{kind}.forward")
    if function is None and kind in EARLIER:
        function = code.function(f"{EARLIER[kind]}.forward")
    if function is None:
        raise Unrecognised(f"{code.module} has no {kind}")
    if FOUR not in function:
        return "positions of texts are not told apart from those of images"
    if LOOKED_FOR in function:
        return "rows are looked for in positions of a text"
    return None if ALONG_AXES in function else "positions of a text are not laid along three axes"


def apply(patch: Patch, module: ModuleType) -> None:
    """Hand packed positions on with those of the text before them."""
    import torch

    kind, tracing = kind_of(module.__name__), compiling()
    owner = getattr(module, kind if hasattr(module, kind) else EARLIER[kind])
    _, *names = signature(owner.forward).parameters
    told = [Argument(place, name) for place, name in enumerate(names) if name in TOLD]

    def forward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        positions = POSITIONS.of(args, kwargs)
        if positions is None or any(each.of(args, kwargs) is not None for each in told):
            return original(self, *args, **kwargs)
        if tracing() or torch.jit.is_tracing() or not begin_again(positions):
            return original(self, *args, **kwargs)
        args, kwargs = POSITIONS.replaced(args, kwargs, positions.expand(1 + AXES, *positions.shape))
        return original(self, *args, **kwargs)

    patch.wrap(owner, "forward", forward)


def kind_of(module: str) -> str:
    """The class of a module of transformers' whose positions lie along three axes."""
    return KINDS[module.split(".")[2]]
