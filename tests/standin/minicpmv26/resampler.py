# ruff: noqa: B905, F403, F405
"""A perceiver resampler with its own attention class and a position table that no checkpoint holds.

Like the code it stands for, it takes ``List`` from ``torch.nn.functional`` by a star import; torch
stopped re-exporting that name.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import *
from transformers.integrations import is_deepspeed_zero3_enabled


def get_2d_sincos_pos_embed(embed_dim, size):
    height, width = size
    ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.cat([_sincos(embed_dim // 2, xs), _sincos(embed_dim // 2, ys)], dim=-1)


def _sincos(embed_dim, positions):
    omega = 10000.0 ** -(torch.arange(embed_dim // 2) / (embed_dim / 2))
    angles = positions[..., None] * omega
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Resampler(nn.Module):
    def __init__(self, num_queries, embed_dim, num_heads, kv_dim=None, adaptive=False, max_size=(70, 70)):
        super().__init__()
        self.num_queries = num_queries
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.adaptive = adaptive
        self.max_size = max_size
        self.query = nn.Parameter(torch.zeros(num_queries, embed_dim))
        if kv_dim is not None and kv_dim != embed_dim:
            self.kv_proj = nn.Linear(kv_dim, embed_dim, bias=False)
        else:
            self.kv_proj = nn.Identity()
        self.attn = MultiheadAttention(embed_dim, num_heads)
        self.ln_q = nn.LayerNorm(embed_dim, eps=1e-6)
        self.ln_kv = nn.LayerNorm(embed_dim, eps=1e-6)
        self.ln_post = nn.LayerNorm(embed_dim, eps=1e-6)
        self.proj = nn.Parameter(embed_dim**-0.5 * torch.randn(embed_dim, embed_dim))
        self._set_2d_pos_cache(self.max_size)

    def _set_2d_pos_cache(self, max_size, device="cpu"):
        if is_deepspeed_zero3_enabled() and torch.cuda.is_available():
            device = "cuda"
        with torch.device("cpu"):
            table = get_2d_sincos_pos_embed(self.embed_dim, max_size).float()
        self.register_buffer("pos_embed", table.to(device), persistent=False)

    def _adjust_pos_cache(self, tgt_sizes, device):
        height, width = (int(n) for n in tgt_sizes.amax(dim=0))
        if height > self.max_size[0] or width > self.max_size[1]:
            self.max_size = [max(height, self.max_size[0]), max(width, self.max_size[1])]
            self._set_2d_pos_cache(self.max_size, device)

    def forward(self, x, tgt_sizes=None):
        count = x.shape[0]
        lengths = tgt_sizes[:, 0] * tgt_sizes[:, 1]
        self._adjust_pos_cache(tgt_sizes, x.device)
        padding = torch.arange(int(lengths.max()), device=x.device) >= lengths.to(x.device)[:, None]
        places = [self.pos_embed[:h, :w].flatten(0, 1).to(x.dtype) for h, w in tgt_sizes.tolist()]
        places = nn.utils.rnn.pad_sequence(places)
        x = self.ln_kv(self.kv_proj(x)).transpose(0, 1)
        query = self.ln_q(self.query)[:, None].expand(-1, count, -1)
        out = self.attn(query, x + places, x, key_padding_mask=padding)[0]
        return self.ln_post(out.transpose(0, 1)) @ self.proj


class MultiheadAttention(nn.MultiheadAttention):
    """Calls ``out_proj`` as a module, which torch's own class does not: ZeRO-3 and LoRA need the call."""

    def __init__(self, embed_dim, num_heads, bias=True, device=None, dtype=None):
        super().__init__(embed_dim, num_heads, bias=bias, device=device, dtype=dtype)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        query, key, value = _project(query, key, value, self.in_proj_weight, self.in_proj_bias)
        mask = None if key_padding_mask is None else ~key_padding_mask[:, None, None]
        heads = [self._split(x) for x in (query, key, value)]
        out = scaled_dot_product_attention(*heads, attn_mask=mask)
        return self.out_proj(out.permute(2, 0, 1, 3).flatten(2)), None

    def _split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3)


def _project(query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor) -> List[Tensor]:
    parts = zip((query, key, value), weight.chunk(3), bias.chunk(3))
    return [linear(*part) for part in parts]
