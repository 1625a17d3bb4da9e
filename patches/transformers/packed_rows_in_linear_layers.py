"""Nothing is seen: packed texts go into one another in layers of linear attention and short convolutions.

What the user sees: no error. Texts packed into one row and told apart by ``position_ids`` that begin again
at 0 (``DataCollatorWithFlattening``, TRL's ``padding_free`` and ``packing``), without a mask, train as one
text in every layer of Qwen3.5, Qwen3-Next, LFM2 and LFM3 that is not attention, and so in MiniCPM-V 4.6
and 4.7, LFM2-VL and LFM3-VL: gradients of these layers are 91 % off and more. So do those that a mask of
every query and key tells apart (LLaMA-Factory's ``neat_packing`` without flash attention). Where boundaries
are said too (newer TRL), ``can't keep packed sequences apart without``, and the name of a package.

Why: attention looks for rows in the positions. A layer of linear attention hands on what it has read to all
that follows, and its convolution the last tokens; neither is told of the rows, whatever kernels there are.
Boundaries that a caller says (``cu_seq_lens_q``, ``seq_idx``) are for the kernels of two packages
(flash-linear-attention, causal-conv1d), each of which takes another of these names. Without the package
transformers 5.20 and later refuse, and earlier releases take no notice.

In transformers since these models came, the first with 4.54; here for releases from 5.16 on, whose layers
call functions of their module. 5.24 has it still.

The change: where attention looks for rows in such positions, or positions come back to 0 and a mask of shape
``[rows, 1, length, length]`` lets no text see another, a layer calls the convolution and the rule of linear
attention for each text by itself, unless boundaries were said and the package is there. Nothing else of the
layer is called more than once. Left alone: positions with gaps, all of them zero, any other mask that the
caller gave, a cache that holds something, a model that is being compiled or traced.

Upstream: https://github.com/huggingface/transformers/issues/46093,
https://github.com/huggingface/transformers/pull/45034
"""

from __future__ import annotations

from types import ModuleType

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.texts_of_rows import (
    POSITIONS,
    RULE,
    Known,
    Told,
    convolution,
    in_layer,
    layer_of,
    one_by_one,
    while_masked,
)

CONVOLUTION = "causal_conv1d_fn"
READERS = {CONVOLUTION: convolution("hidden_states"), "torch_chunk_gated_delta_rule": RULE}
MASKED = "create_recurrent_attention_mask"  # made once a forward, from what attention's own mask is made of


def look(code: Code) -> str | None:
    """The layer must be handed the positions that its mask was made of, and call functions of its module."""
    layer = code.function(f"{layer_of(code.module)}.forward")
    if layer is None:
        raise Unrecognised(f"{code.module} has no {layer_of(code.module)}")
    if code.function(CONVOLUTION) is None:
        return "layers hold their convolution themselves"
    if POSITIONS not in layer.parameters or f"{MASKED}(**" not in code.source:
        raise Unrecognised(f"{layer_of(code.module)} is told of positions in another way than it was")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Know the texts where masks are made and in a layer, and call for each what reads along a row."""
    told, known = Told(), Known()
    layer = getattr(module, layer_of(module.__name__))
    patch.wrap(module, MASKED, while_masked(known))
    patch.wrap(layer, "forward", in_layer(layer, known, lambda self, texts: told.texts(texts)))
    for name, reader in READERS.items():
        if hasattr(module, name):
            patch.wrap(module, name, one_by_one(told, reader))
