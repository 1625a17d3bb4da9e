"""Tensors by the names that forwards have for them."""

from __future__ import annotations

from typing import Any

ROWS, LENGTH = 2, 9


def offered(model: Any) -> dict[str, list[Any]]:
    """By each name, what a model of this configuration may mean by it."""
    import torch

    def some(*shape: int) -> Any:
        return torch.randn(shape)

    def ones(*shape: int) -> Any:
        return torch.ones(shape, dtype=torch.long)

    config = model.config
    seen = config if hasattr(config, "image_size") else getattr(config, "vision_config", config)
    size, channels = number(seen, "image_size", 32), number(seen, "num_channels", 3)
    patch = number(seen, "patch_size", 14)
    width = channels * patch * patch
    frames = 2 * number(config, "max_source_positions", 16)
    hidden = number(config, "hidden_size", number(config, "d_model", 64))
    bins = {
        number(each, name, 0)
        for each in (config, getattr(config, "audio_config", config))
        for name in (
            "num_mel_bins",
            "feature_size",
            "feature_projection_input_dim",
            "input_feat_per_channel",
            "input_feat_size",
            "input_dim",
            "n_mels",
        )
    } - {0} or {16}
    moving = number(seen, "num_frames", 4)
    images = [
        some(ROWS, channels, size, size),
        some(ROWS, moving, channels, size, size),
        some(ROWS, channels, moving, size, size),
        some(ROWS, 1, channels, size, size),
        some(ROWS, 16, width),
        some(16, width * number(seen, "temporal_patch_size", 2)),
        some(16, width),
        some(16, channels, patch, patch),
        some(ROWS, 1, 4, channels, size, size),
    ]
    sounds = [
        sound
        for each in sorted(bins)
        for sound in (
            some(ROWS, each, frames),
            some(ROWS, frames, each),
            some(ROWS, 1, frames, each),
            some(each, frames),
        )
    ]
    # as an embedding would make them: what requires no gradient gets none from reentrant checkpointing
    states = [some(ROWS, LENGTH, hidden).requires_grad_(), some(LENGTH, hidden).requires_grad_()]
    acts, poses = number(config, "max_action_dim", 32), number(config, "max_state_dim", 32)
    grid = [torch.tensor([[1, 4, 4]])]
    length = number(config, "context_length", 8) + max(getattr(config, "lags_sequence", None) or [0])
    times, variates = number(config, "num_time_features", 1), number(config, "num_input_channels", 1)
    ahead = number(config, "prediction_length", 4)
    return {
        "pixel_values": images,
        "pixel_values_videos": images[1:],
        "input_features": [*sounds, some(ROWS, frames)],
        "input_values": [
            *(some(ROWS, 4000), *sounds, some(ROWS, frames), some(ROWS, 1, 4000), some(ROWS, 24000))
        ],
        "past_values": [*(some(ROWS, *each) for each in ((length,), (64,), (64, 1), (64, variates)))],
        "past_time_features": [some(ROWS, length, times)],
        "past_observed_mask": [ones(ROWS, length)],
        "future_values": [some(ROWS, ahead)],
        "future_time_features": [some(ROWS, ahead, times)],
        "inputs_embeds": states[:1],
        "hidden_states": [*states, *images],
        "attention_mask": [ones(ROWS, LENGTH)],
        "encoder_hidden_states": states[:1],
        "grid_thw": grid,
        "image_grid_thw": grid,
        "spatial_shapes": [torch.tensor([[4, 4]] * ROWS)],
        "pixel_attention_mask": [ones(ROWS, 16)],
        "merge_sizes": [torch.tensor([1])],
        "aspect_ratio_ids": [ones(ROWS, 1)],
        "aspect_ratio_mask": [ones(ROWS, 1, 4)],
        "qformer_input_ids": [torch.randint(5, 100, (ROWS, LENGTH))],
        "query_embeds": states[:1],
        "bool_masked_pos": [torch.arange(16).expand(ROWS, 16) % 2 == 0],
        "prompt_pixel_values": images[:1],
        "prompt_masks": images[:1],
        "mask": [ones(ROWS, LENGTH), ones(ROWS, frames)],
        "input_features_mask": [ones(ROWS, frames)],
        "conditional_pixel_values": images[:1],
        "image_embeds": states[:1],
        "mm_token_type_ids": [torch.zeros(ROWS, LENGTH, dtype=torch.long)],
        "token_type_ids": [torch.zeros(ROWS, LENGTH, dtype=torch.long)],
        "state": [some(ROWS, poses)],
        "actions": [some(ROWS, number(config, "chunk_size", 50), acts)],
        "action_embeds": states[:1],
        "conditional_embeddings": [some(ROWS, number(config, "projection_dim", 64))],
        "num_patches": [16],
    }


def number(config: Any, name: str, otherwise: int) -> int:
    try:
        found = getattr(config, name)
    except Exception:
        return otherwise
    found = found[0] if isinstance(found, (list, tuple)) and found else found
    return found if isinstance(found, int) else otherwise
