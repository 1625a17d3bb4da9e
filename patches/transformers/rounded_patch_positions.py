"""Nothing is seen: the vision tower of Idefics2, Idefics3 or SmolVLM takes patches for their neighbours.

What the user sees: no error. Of an image as large as the tower's table of positions every patch but the first
row and column is taken for the one before it (transformers 4.55 to 4.57 in float32, which bf16 by autocast is
too), or about every other one is (5.0 to 5.20 in bf16 or fp16, and 4.55 to 4.57 where a side of the table is
no power of two). Two rows and columns share a position, and the last positions are never used.

Why: 4.55 multiplies what share of the image lies before a patch by ``1 - 1e-6``, which is below the edge
between two positions for every patch that begins at one. 5.0 rounds the share to the images' dtype, whose
eight bits round half of them down across their edge.

Since transformers 4.55.0, until 5.21.0; Phi-4-multimodal since 5.0. What was trained and generates on such a
release has seen images so in both; the checkpoints of these models have not, and other runtimes do not.

The change: the positions are those of 5.21 and of releases before 4.55, computed in float32, in training and
evaluation. Where a release had them right nothing changes. A compiled tower is left as it is.

Upstream: https://github.com/huggingface/transformers/issues/41190,
https://github.com/huggingface/transformers/pull/41374
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.compiling import compiling

KINDS = {
    "idefics2": "Idefics2VisionEmbeddings",
    "idefics3": "Idefics3VisionEmbeddings",
    "smolvlm": "SmolVLMVisionEmbeddings",
    "phi4_multimodal": "Phi4MultimodalVisionEmbeddings",
}
MULTIPLIED = "/ nb_patches_h * (1 - 1e-6)"
ROUNDED = "fractional_coords_h.to(pixel_values.dtype)"
BUCKETS = "bucketize("
LAST = 1.0 - 1e-6  # the share before the end of an image, which has no position
SHOWN = Argument(1, "patch_attention_mask")


def look(code: Code) -> str | None:
    """Shares of an image must be made smaller or be rounded before they are told apart."""
    name = f"{kind_of(code.module)}.forward"
    function = code.function(name)
    if function is None or BUCKETS not in function:
        raise Unrecognised(f"{code.module} has no {name} that tells positions apart")
    broken = MULTIPLIED in function or ROUNDED in function
    return None if broken else "positions of patches are computed in float32"


def apply(patch: Patch, module: ModuleType) -> None:
    """Look up the right positions."""
    tracing = compiling()

    def forward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        table, side, shown = self.position_embedding, self.num_patches_per_side, SHOWN.of(args, kwargs)
        if tracing():
            return original(self, *args, **kwargs)
        hook = table.register_forward_pre_hook(Instead(positions(shown, side)))
        try:
            return original(self, *args, **kwargs)
        finally:
            hook.remove()

    patch.wrap(getattr(module, kind_of(module.__name__)), "forward", forward)


def kind_of(module: str) -> str:
    """The class of a module of transformers' that embeds patches."""
    return KINDS[module.split(".")[2]]


def positions(shown: Any, side: int) -> Any:
    """The entry of each patch in a table of ``side`` times ``side``; padding has the first.

    Args:
        shown: shape ``[images, rows, columns]``: where an image has a patch.
        side: positions along a side of the table.
    """
    import torch

    exact = {"dtype": torch.float32, "device": shown.device}
    edges = torch.arange(1 / side, 1.0, 1 / side, **exact)

    def along(count: Any, size: int) -> Any:
        shares = torch.arange(size, **exact) * (1.0 / count)[:, None]
        return torch.bucketize(shares.clamp(max=LAST), edges, right=True)

    rows = along(shown[:, :, 0].sum(dim=1), shown.shape[1])
    columns = along(shown[:, 0].sum(dim=1), shown.shape[2])
    return torch.where(shown.bool(), rows[:, :, None] * side + columns[:, None], 0).flatten(1)


class Instead:
    """Hook of a table, before its forward: the thread that made it looks up the ``right`` positions.

    What another thread looks up meanwhile, in a forward of its own, is left to that.
    """

    def __init__(self, right: Any) -> None:
        self._right, self._thread = right, threading.get_ident()

    def __call__(self, table: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Forward pre-hook."""
        if threading.get_ident() != self._thread:
            return None
        given, *rest = inputs
        return (self._right.to(given.device), *rest)
