"""The smallest image a model accepts, made from its configuration; and a way to run it without a trace.

A model says what its images look like by the parameters of its ``get_image_features``.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

from vlmpatch.api import signature

Inputs = dict[str, Any]

# What a vision tower returns beside the features that the language model gets. It must stay out of the
# graph: with ``vision_feature_layer=-2`` the tower's last hidden state belongs to a layer no image trains.
_NOT_FEATURES = ("last_hidden_state", "hidden_states", "attentions")
_FROM_CONFIG = ("vision_feature_layer", "vision_feature_select_strategy", "vision_aspect_ratio")


def blank_inputs(model: Any, function: Callable[..., Any], dtype: Any, device: Any) -> Inputs:
    """Arguments of ``function`` (a bound ``get_image_features``) for one blank image.

    The shapes are those of the model's own processor for one sample; see the recipes by family.

    Raises:
        AttributeError, KeyError, TypeError: the configuration is not as any we know.
    """
    import torch

    names = _asked(function)
    recipe = next((make for mark, make in _RECIPES.items() if mark in names), _plain)
    made = recipe(model, model.config.vision_config)
    for config in (model.config.vision_config, model.config):  # Llama 4's alone says its tower's
        told = (name for name in _FROM_CONFIG if name in names and hasattr(config, name))
        made |= {name: getattr(config, name) for name in told}
    inputs = {}
    for name, value in made.items():
        if name in names:
            number = isinstance(value, torch.Tensor)
            kind = dtype if number and value.is_floating_point() else None
            inputs[name] = value.to(device=device, dtype=kind) if number else value
    return inputs


def _asked(function: Callable[..., Any]) -> set[str]:
    """The parameters of ``function`` that a blank image has to fill.

    LLaVA's optional ``image_sizes`` are for Pixtral, which does without where there is one picture; with a
    tower of one size, such as CLIP, they end in an ``AttributeError``.
    """
    parameters = signature(function).parameters
    return {
        name
        for name, parameter in parameters.items()
        if name != "image_sizes" or parameter.default is parameter.empty
    }


def features(output: Any) -> list[Any]:
    """The floating-point tensors in what ``get_image_features`` returned, of any shape: most are
    ``(tokens, hidden)`` or ``(images, tokens, hidden)``.
    """
    return list(_tensors(output))


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):  # transformers' ModelOutput is one
        # Up to 5.2 what was None when it was made, and is set afterwards, is an attribute of it and no item.
        every = {**getattr(value, "__dict__", {}), **value}
        known = {name: item for name, item in every.items() if item is not None}
        whole = len(known) > 1 and any(name not in _NOT_FEATURES for name in known)
        for name, item in known.items():
            if not (whole and name in _NOT_FEATURES):
                yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def add_nothing(tensor: Any, others: list[Any], begun: Callable[[], Any] = lambda: None) -> Any:
    """A copy of ``tensor`` whose backward reaches ``others`` with zeros, whatever stands in them.

    Args:
        tensor: of any shape; the copy has the same.
        others: tensors of any shapes, each of which gets zeros of its own.
        begun: called in the backward, before it reaches ``others``.
    """
    return _nothing().apply(begun, tensor, *others)


@functools.cache
def _nothing() -> Any:
    import torch

    class Nothing(torch.autograd.Function):  # type: ignore[misc]
        """Adds no number: zero times NaN would be NaN."""

        @staticmethod
        def forward(ctx: Any, begun: Callable[[], Any], tensor: Any, *others: Any) -> Any:
            ctx.begun = begun
            ctx.others = [(other.shape, other.dtype, other.device) for other in others]
            return tensor.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            ctx.begun()
            needed = ctx.needs_input_grad[2:]
            others = zip(ctx.others, needed, strict=True)
            zeros = [torch.zeros(s, dtype=t, device=d) if need else None for (s, t, d), need in others]
            return None, gradient, *zeros

    return Nothing


# --- by family ------------------------------------------------------------------------------------


def _plain(model: Any, vision: Any) -> Inputs:
    """CLIP, SigLIP and their kin: ``(1, channels, height, width)``, of the size the tower was built for.

    Gemma 3n's tower is timm's, which says it and the configuration does not; DeepSeek-OCR 2 has a tower
    before its tower, which says it; Florence 2 takes any picture that its strides leave a piece of.
    """
    import torch

    vision = getattr(vision, "sam_config", vision)
    if hasattr(vision, "patch_stride"):
        side = math.prod(vision.patch_stride)
        return {"pixel_values": torch.ones(1, _channels(vision), side, side)}
    if not hasattr(vision, "image_size"):
        return {"pixel_values": torch.ones(1, *model.vision_tower.timm_model.pretrained_cfg["input_size"])}
    return {"pixel_values": torch.ones(1, _channels(vision), *_size(vision))}


def _patches(model: Any, vision: Any) -> Inputs:
    """Qwen-VL, GLM-4V: flattened patches, ``(patches, values)``, as many as are merged into one token.

    With their grid, ``(1, 3)``. Patches of those in ``_SQUARE`` are ``(patches, channels, side, side)``.
    """
    import torch

    merge = _first(vision, ("spatial_merge_size", "merge_size", "merge_kernel_size"), 1)
    merge = merge if isinstance(merge, int) else merge[0]
    moments = _first(vision, ("temporal_patch_size", "patch_temporal"), 1)
    length = _channels(vision) * moments * vision.patch_size**2
    square = (_channels(vision), vision.patch_size, vision.patch_size)
    shape = square if getattr(vision, "model_type", "") in _SQUARE else (length,)
    grid = torch.tensor([[1, merge, merge]])
    sizes = torch.tensor([merge])  # VideoLLaMA 3 says for each image how much of it is merged
    return {
        "pixel_values": torch.ones(merge**2, *shape),
        "image_grid_thw": grid,
        "image_merge_sizes": sizes,
    }


def _tiles(model: Any, vision: Any) -> Inputs:
    """LLaVA-NeXT and OneVision: tiles of one picture, ``(1, tiles, channels, height, width)``.

    Pixtral: a picture, ``(1, channels, height, width)``, of two tokens: Mistral 3 takes one for none. Both
    with its size, ``(1, 2)``.
    """
    import torch

    height, width = _size(vision)
    if not hasattr(model.config, "image_grid_pinpoints"):
        if hasattr(vision, "patch_size") and hasattr(model.config, "spatial_merge_size"):
            height = vision.patch_size * model.config.spatial_merge_size
            width = 2 * height
        picture = torch.ones(1, _channels(vision), height, width)
        return {"pixel_values": picture, "image_sizes": torch.tensor([[height, width]])}
    count = sys.modules[type(model).__module__].image_size_to_num_patches
    tiles = count([height, width], model.config.image_grid_pinpoints, height)
    return {
        "pixel_values": torch.ones(1, tiles, _channels(vision), height, width),
        "image_sizes": torch.tensor([[height, width]]),
    }


def _padded(model: Any, vision: Any) -> Inputs:
    """Idefics: one picture of one sample, ``(1, 1, channels, height, width)``.

    All zeros would be taken for padding and thrown away.
    """
    import torch

    return {"pixel_values": torch.ones(1, 1, _channels(vision), *_size(vision))}


def _packed(model: Any, vision: Any) -> Inputs:
    """MiniCPM-V from 4.6 on: the patches of all pictures in one row, merged two by two and again.

    ``(1, channels, side of a patch, patches * side of a patch)``, with the grid of each picture, ``(1, 2)``.
    """
    import torch

    side = 2 * 2 ** getattr(model.config, "merger_times", 1)
    length = side * side * vision.patch_size
    pixels = torch.ones(1, _channels(vision), vision.patch_size, length)
    return {"pixel_values": pixels, "target_sizes": torch.tensor([[side, side]])}


def _shaped(model: Any, vision: Any) -> Inputs:
    """LFM2-VL: flattened patches, ``(1, patches, values)``, with their shape, ``(1, 2)``, and a mask."""
    import torch

    side = getattr(model.config, "downsample_factor", 1)
    length = _channels(vision) * vision.patch_size**2
    return {
        "pixel_values": torch.ones(1, side * side, length),
        "spatial_shapes": torch.tensor([[side, side]]),
        "pixel_attention_mask": torch.ones(1, side * side, dtype=torch.long),
    }


def _positioned(model: Any, vision: Any) -> Inputs:
    """Gemma 4: flattened patches, ``(1, patches, values)``, as many as are pooled into one token.

    With the place of each, ``(1, patches, 2)``.
    """
    import torch

    side = vision.pooling_kernel_size
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    pixels = torch.ones(1, side * side, _channels(vision) * vision.patch_size**2)
    return {"pixel_values": pixels, "image_position_ids": places[None]}


def _pooled(model: Any, vision: Any) -> Inputs:
    """Molmo 2: all patches of one crop, ``(1, patches, values)``; the first is pooled into one token.

    With what each token pools, ``(1, 1)``, and how many the whole picture and its crops have, ``(1, 4)``.
    """
    import torch

    height, width = (each // vision.patch_size for each in _size(vision))
    return {
        "pixel_values": torch.ones(1, height * width, _channels(vision) * vision.patch_size**2),
        "image_token_pooling": torch.zeros(1, 1, dtype=torch.long),
        "image_grids": torch.tensor([[1, 1, 0, 0]]),
    }


def _twice(model: Any, vision: Any) -> Inputs:
    """DeepSeek-VL's hybrid: one picture in two sizes, ``(1, channels, height, width)`` each."""
    import torch

    high = model.config.high_res_vision_config
    larger = torch.ones(1, _channels(high), *_size(high))
    return {**_plain(model, vision), "high_res_pixel_values": larger}


# Vision configurations whose towers convolve patches as they come.
_SQUARE = ("kimi_k25_vision", "paddleocr_vl_vision")
# The parameter of get_image_features that tells a family, the most telling first.
_RECIPES: dict[str, Callable[[Any, Any], Inputs]] = {
    "image_grid_thw": _patches,
    "grid_thw": _patches,
    "image_token_pooling": _pooled,
    "high_res_pixel_values": _twice,
    "image_position_ids": _positioned,
    "target_sizes": _packed,
    "spatial_shapes": _shaped,
    "pixel_attention_mask": _padded,
    "image_sizes": _tiles,
}


def _channels(vision: Any) -> int:
    return int(_first(vision, ("in_channels", "in_chans", "num_channels"), 3))


def _first(config: Any, names: tuple[str, ...], otherwise: Any) -> Any:
    """The first of ``names`` that ``config`` says something by."""
    return next((said for name in names if (said := getattr(config, name, None))), otherwise)


def _size(vision: Any) -> tuple[int, int]:
    size = vision.image_size
    height, width = (size, size) if isinstance(size, int) else size
    return int(height), int(width)
