"""flash_attn's functions for a machine without a GPU: the same mathematics by torch's own attention."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

__version__ = "2.7.4"
flash_attn_with_kvcache = None  # transformers 5 imports it; only a generation calls it


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    **more: Any,
) -> torch.Tensor:
    """Attention over ``[batch, length, heads, size]``; the last queries see the last keys."""
    groups = q.shape[2] // k.shape[2]
    q, k, v = (
        each.transpose(1, 2) for each in (q, k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2))
    )
    mask = None
    if causal:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    found = scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout_p, scale=softmax_scale)
    return found.transpose(1, 2)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    **more: Any,
) -> torch.Tensor:
    """The same over ``[all lengths, heads, size]``, a sequence after the other."""
    parts = []
    for at in range(len(cu_seqlens_q) - 1):
        queries = slice(int(cu_seqlens_q[at]), int(cu_seqlens_q[at + 1]))
        keys = slice(int(cu_seqlens_k[at]), int(cu_seqlens_k[at + 1]))
        one = flash_attn_func(q[None, queries], k[None, keys], v[None, keys], **more)
        parts.append(one[0])
    return torch.cat(parts)
