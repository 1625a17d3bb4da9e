"""Functions that stand for flash attention's kernels, in plain torch; all around them is transformers' own.

A kernel reads beyond the end of a batch where boundaries say so; these refuse.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import transformers.modeling_flash_attention_utils as utils
from torch.nn.functional import scaled_dot_product_attention


def use(model: Any, attention: str) -> None:
    """Have every module of ``model`` attend by ``attention``, whether its package is there or not."""
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation_internal"):
            config._attn_implementation_internal = attention


@contextlib.contextmanager
def stood_in() -> Iterator[None]:
    """Inside, transformers finds these for kernels."""
    integration: Any = importlib.import_module("transformers.integrations.flash_attention")  # since 4.48
    pages = _with_pages()
    kernels = (_whole, _packed, *([None] if pages else []), utils._pad_input, utils._unpad_input)
    names: Any = (_names, dict) if pages else _names
    with (
        mock.patch.object(utils, "lazy_import_flash_attention", return_value=(kernels, names)),
        mock.patch.object(integration, "flash_attn_supports_top_left_mask", return_value=False),
    ):
        yield


def _with_pages() -> bool:
    """Whether there is a kernel for caches in pages among those that transformers asks for."""
    return hasattr(utils, "_flash_with_kvcache_fn")


def _names(**said: Any) -> dict[str, Any]:
    """What a kernel is told, by its own names."""
    return {"causal": said["is_causal"]}


def _whole(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, **said: Any
) -> torch.Tensor:
    """Of shape [rows, length, heads, size]."""
    groups = query.shape[2] // key.shape[2]
    key, value = (each.repeat_interleave(groups, 2) for each in (key, value))
    parts = (each.transpose(1, 2) for each in (query, key, value))
    return scaled_dot_product_attention(*parts, is_causal=causal).transpose(1, 2)


def _packed(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seqlens_q: torch.Tensor, **said: Any
) -> torch.Tensor:
    """Of shape [tokens, heads, size], with boundaries."""
    ends = cu_seqlens_q.tolist()
    if ends[-1] != len(query):
        raise RuntimeError(f"an illegal memory access: boundaries {ends} of {len(query)} tokens")
    parts = [
        _whole(*(each[None, begin:end] for each in (query, key, value)), **said)[0]
        for begin, end in itertools.pairwise(ends)
    ]
    return torch.cat(parts)
