"""The smallest sound a model accepts, made from its configuration; ``blank_image`` does it for images.

A model says what its sounds look like by the parameters of its ``get_audio_features`` and by what its audio
configuration calls their width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vlmpatch.api import signature

_FRAMES = 64  # of a sound, where a model takes any number: a multiple of what any of them merges


def blank_audio(model: Any, function: Callable[..., Any], dtype: Any, device: Any) -> dict[str, Any]:
    """Arguments of ``function`` (a bound ``get_audio_features``) for one sound of nothing but ones.

    Those of floating point are ``(1, bands, frames)`` or, for conformers, ``(1, frames, bands)``; masks are
    ``(1, frames)``.

    Raises:
        AttributeError, TypeError: the configuration is not as any we know.
    """
    import torch

    audio = _config(model)
    frames = _frames(audio)
    shape = (1, frames, _width(audio)) if _frames_first(audio) else (1, _width(audio), frames)
    heard = torch.ones(1, frames, dtype=torch.bool, device=device)
    made = {
        "input_features": torch.ones(shape, dtype=dtype, device=device),
        "feature_attention_mask": heard,
        "input_features_mask": heard,
    }
    asked = signature(function).parameters
    return {name: value for name, value in made.items() if name in asked}


def _config(model: Any) -> Any:
    """Granite Speech calls its audio tower an encoder, and has no other."""
    found = getattr(model.config, "audio_config", None)
    return found if found is not None else model.config.encoder_config


def _frames(audio: Any) -> int:
    """A Whisper encoder adds positions to all of its frames, so that it takes no fewer.

    Those that cut a sound into windows (Qwen's omni models, Qwen3-ASR) take one window.
    """
    if (window := getattr(audio, "n_window", None)) is not None:
        return 2 * int(window)
    return 2 * int(getattr(audio, "max_source_positions", _FRAMES // 2))


def _frames_first(audio: Any) -> bool:
    return _bands_of_a_conformer(audio) is not None


def _width(audio: Any) -> int:
    bands = _bands_of_a_conformer(audio)
    return int(audio.num_mel_bins if bands is None else bands)


def _bands_of_a_conformer(audio: Any) -> Any:
    """Gemma 4 has as many as its first convolution has channels, and does not say so."""
    names = ("input_feat_size", "input_dim", "audio_embed_dim")
    channels = getattr(audio, "subsampling_conv_channels", None)
    first = channels[0] if isinstance(channels, (list, tuple)) else None
    return next((getattr(audio, name) for name in names if hasattr(audio, name)), first)
