"""What ``transformers.modeling_attn_mask_utils`` offered until 5.23: the same names, calls and masks.

``tests/e2e/test_masks.py`` holds every function against the releases that have the module.
"""

from __future__ import annotations

from typing import Any


class AttentionMaskConverter:
    """Makes what is added to attention scores: 0 where a key may be seen, else the dtype's lowest number."""

    def __init__(self, is_causal: bool, sliding_window: int | None = None) -> None:
        if sliding_window is not None and sliding_window <= 0:
            raise ValueError(f"sliding_window must be a positive integer, not {sliding_window}")
        self.is_causal = is_causal
        self.sliding_window = sliding_window

    def to_causal_4d(
        self, batch_size: int, query_length: int, key_value_length: int, dtype: Any, device: Any = "cpu"
    ) -> Any:
        """The causal mask alone; None where a single query sees every key."""
        if not self.is_causal:
            raise ValueError("to_causal_4d is for a converter with is_causal=True")
        if query_length <= 1 and self.sliding_window is None:
            return None
        past, shape = key_value_length - query_length, (batch_size, query_length)
        return self._make_causal_mask(shape, dtype, device, past, self.sliding_window)

    def to_4d(
        self, attention_mask_2d: Any, query_length: int, dtype: Any, key_value_length: int | None = None
    ) -> Any:
        """The padding of a batch, and the causal mask with it where the converter is causal."""
        both = self.is_causal and (query_length > 1 or self.sliding_window is not None)
        if both and key_value_length is None:
            raise ValueError("a causal converter needs key_value_length")
        if self.sliding_window is not None and not self.is_causal:
            raise NotImplementedError("a sliding window is for causal masks")
        padding = self._expand_mask(attention_mask_2d, dtype, query_length)
        if not both or key_value_length is None:
            return padding
        rows, device = attention_mask_2d.shape[0], attention_mask_2d.device
        causal = self.to_causal_4d(rows, query_length, key_value_length, dtype, device)
        return causal.masked_fill(padding != 0, _lowest(dtype))

    @staticmethod
    def _make_causal_mask(
        input_ids_shape: Any,
        dtype: Any,
        device: Any,
        past_key_values_length: int = 0,
        sliding_window: int | None = None,
    ) -> Any:
        import torch

        rows, queries = input_ids_shape
        keys = queries + past_key_values_length
        ahead = torch.arange(keys, device=device) - past_key_values_length
        ahead = ahead - torch.arange(queries, device=device)[:, None]  # of each key, how far from its query
        hidden = ahead > 0
        if sliding_window is not None:
            hidden = hidden | (ahead < -sliding_window)
        mask = torch.zeros(queries, keys, dtype=dtype, device=device).masked_fill(hidden, _lowest(dtype))
        return mask.expand(rows, 1, queries, keys)

    @staticmethod
    def _expand_mask(mask: Any, dtype: Any, tgt_len: int | None = None) -> Any:
        import torch

        rows, keys = mask.size()
        queries = keys if tgt_len is None else tgt_len
        hidden = (mask.to(dtype) != 1)[:, None, None, :].expand(rows, 1, queries, keys)
        return torch.zeros(hidden.shape, dtype=dtype, device=mask.device).masked_fill(hidden, _lowest(dtype))

    @staticmethod
    def _unmask_unattended(expanded_mask: Any, min_dtype: float) -> Any:
        """Queries that see no key see all of them: SDPA's kernels for GPUs have no answer else."""
        import torch

        if expanded_mask.dtype == torch.bool:
            raise ValueError("_unmask_unattended expects a float mask, got a boolean one")
        return expanded_mask.mul(~(expanded_mask == min_dtype).all(dim=-1, keepdim=True))

    @staticmethod
    def _ignore_causal_mask_sdpa(
        attention_mask: Any,
        inputs_embeds: Any,
        past_key_values_length: int,
        sliding_window: int | None = None,
        is_training: bool = False,
    ) -> bool:
        """Whether SDPA's ``is_causal`` says as much as the mask would."""
        queries = inputs_embeds.shape[1]
        keys = queries + past_key_values_length
        if sliding_window is not None and keys >= sliding_window:
            return False
        if attention_mask is None:
            nothing_hidden = is_training or not _is_traced(inputs_embeds)
        else:
            flat = len(attention_mask.shape) != 4
            nothing_hidden = flat and not _is_traced(inputs_embeds) and bool((attention_mask == 1).all())
        return nothing_hidden and queries in (1, keys)


def _prepare_4d_causal_attention_mask(
    attention_mask: Any,
    input_shape: Any,
    inputs_embeds: Any,
    past_key_values_length: int,
    sliding_window: int | None = None,
) -> Any:
    converter, dtype = AttentionMaskConverter(True, sliding_window), inputs_embeds.dtype
    rows, queries = input_shape[0], input_shape[-1]
    keys = queries + past_key_values_length
    dimensions = 0 if attention_mask is None else len(attention_mask.shape)
    if dimensions == 2:
        return converter.to_4d(attention_mask, queries, dtype, keys)
    if dimensions == 4:
        if tuple(attention_mask.shape) != (rows, 1, queries, keys):
            found = tuple(attention_mask.shape)
            raise ValueError(f"attention_mask has shape {found}, expected {(rows, 1, queries, keys)}")
        hidden = 1.0 - attention_mask
        return hidden.masked_fill(hidden != 0, _lowest(dtype))
    return converter.to_causal_4d(rows, queries, keys, dtype, inputs_embeds.device)


def _prepare_4d_causal_attention_mask_for_sdpa(
    attention_mask: Any,
    input_shape: Any,
    inputs_embeds: Any,
    past_key_values_length: int,
    sliding_window: int | None = None,
) -> Any:
    converter, dtype = AttentionMaskConverter(True, sliding_window), inputs_embeds.dtype
    rows, queries = input_shape[0], input_shape[-1]
    keys = queries + past_key_values_length
    if converter._ignore_causal_mask_sdpa(
        attention_mask, inputs_embeds, past_key_values_length, sliding_window
    ):
        return None
    if attention_mask is None:
        return converter.to_causal_4d(rows, queries, keys, dtype, inputs_embeds.device)
    whole = attention_mask.dim() == 4
    mask = attention_mask if whole else converter.to_4d(attention_mask, queries, dtype, keys)
    if _is_traced(inputs_embeds) or mask.device.type not in ("cuda", "xpu"):
        return mask
    return converter._unmask_unattended(mask, _lowest(dtype))


def _prepare_4d_attention_mask(mask: Any, dtype: Any, tgt_len: int | None = None) -> Any:
    return AttentionMaskConverter._expand_mask(mask, dtype, tgt_len)


def _prepare_4d_attention_mask_for_sdpa(mask: Any, dtype: Any, tgt_len: int | None = None) -> Any:
    _, keys = mask.shape
    if not _is_traced(mask) and (mask == 1).all():
        return None
    return AttentionMaskConverter._expand_mask(mask, dtype, keys if tgt_len is None else tgt_len)


def _create_4d_causal_attention_mask(
    input_shape: Any,
    dtype: Any,
    device: Any,
    past_key_values_length: int = 0,
    sliding_window: int | None = None,
) -> Any:
    rows, queries = input_shape[0], input_shape[-1]
    converter = AttentionMaskConverter(True, sliding_window)
    return converter.to_causal_4d(rows, queries, queries + past_key_values_length, dtype, device)


def _lowest(dtype: Any) -> float:
    import torch

    return float(torch.finfo(dtype).min)


def _is_traced(tensor: Any) -> bool:
    from transformers.utils.import_utils import is_tracing

    return bool(is_tracing(tensor))


OFFERED: tuple[Any, ...] = (
    AttentionMaskConverter,
    _prepare_4d_causal_attention_mask,
    _prepare_4d_causal_attention_mask_for_sdpa,
    _prepare_4d_attention_mask,
    _prepare_4d_attention_mask_for_sdpa,
    _create_4d_causal_attention_mask,
)
