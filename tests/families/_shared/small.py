"""A small model of any family that transformers has, made from its own configuration."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.families._shared.batches import write
from tests.families._shared.sizes import IMAGE, TEXT, VISION

SIZE, PATCH = 56, 14
LARGEST = 20_000_000  # parameters of a model that is still small
# Every name that a configuration has for what makes a model large; each takes those it knows.
LANGUAGE: dict[str, Any] = {
    **TEXT,
    "head_dim": 16,
    "attention_head_dim": 16,
    "num_layers": 2,
    "d_model": 64,
    "d_ff": 128,
    "ffn_dim": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "moe_num_shared_experts": 1,
    "intermediate_size_mlp": 64,
    "sliding_window": 16,
    "layer_types": ["full_attention"] * 2,
    "mlp_layer_types": ["dense"] * 2,
    "rope_scaling": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
TOWER: dict[str, Any] = {
    **VISION,
    "depth": 2,
    "embed_dim": 32,
    "num_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "mlp_dim": 64,
    "mlp_ratio": 2,
    "image_size": SIZE,
    "img_size": SIZE,
    "patch_size": PATCH,
    "out_hidden_size": 64,
    "output_dim": 64,
    "projection_dim": 64,
    "layer_types": ["full_attention"] * 2,
}
DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "dropout")
BRIDGE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TOP = {
    "hidden_size": 64,
    "projection_dim": 64,
    "num_query_tokens": 4,
    "vision_feature_layer": -1,
    "image_seq_length": 4,
    "mm_tokens_per_image": 4,
}
IMAGE_TOKENS = ("image_token_id", "image_token_index", "image_soft_token_id")
MROPE = {"mrope_section": [2, 3, 3]}


def small(model_type: str, more: dict[str, dict[str, Any]]) -> Any:
    """The configuration of a family, with every part of it made small."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    default = kind()
    parts = {}
    for name, value in vars(default).items():
        if name.endswith("_config") and hasattr(value, "to_dict"):
            sizes = LANGUAGE if "text" in name or "llm" in name else BRIDGE if "qformer" in name else TOWER
            parts[name] = shrunk(value, sizes).to_dict() | more.get(name.removesuffix("_config"), {})
    if not parts:
        return shrunk(default, LANGUAGE)
    top = TOP | dict.fromkeys(IMAGE_TOKENS, IMAGE)
    return kind(**known(default, top), **more.get("top", {}), **parts)


def shrunk(config: Any, sizes: dict[str, Any]) -> Any:
    return type(config)(**known(config, sizes))


def known(config: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    """Those of ``sizes`` that ``config`` has, each of the type that it has there."""
    found = {}
    for name, value in {**sizes, **dict.fromkeys(DROPOUT, 0.0)}.items():
        try:
            own = getattr(config, name)
        except Exception:  # not there, or one for each layer, which says so with an error of its own
            continue
        if name.startswith("rope_"):
            found[name] = rope(own or {}, value)
        elif not isinstance(own, (list, tuple)) or isinstance(value, list):
            found[name] = float(value) if isinstance(own, float) else value
    return found


def rope(own: dict[str, Any], value: Any) -> Any:
    """A plain rotary embedding, said as this configuration says it."""
    if own and all(isinstance(part, dict) for part in own.values()):
        return {name: rope(part, value) for name, part in own.items()}
    if "mrope_section" in own:
        more = {name: own[name] for name in ("mrope_interleaved", "partial_rotary_factor") if name in own}
        return {**(value or {}), "rope_type": "default", **MROPE, **more}
    theta = {name: own[name] for name in ("rope_theta",) if name in own}
    return {"rope_type": "default", **theta} if own else value


def make(model_type: str, folder: Path, **more: dict[str, Any]) -> int:
    """Make one of the families that transformers lists.

    Args:
        model_type: transformers' name for it.
        folder: where the checkpoint goes.
        more: what its ``text``, its ``vision`` or the ``top`` of its configuration wants besides.
    """
    import torch
    import transformers
    from accelerate import init_empty_weights

    config = small(model_type, more)
    kind = getattr(transformers, listed()[model_type])
    with init_empty_weights():
        count = sum(parameter.numel() for parameter in kind(copy.deepcopy(config)).parameters())
    if count > LARGEST:
        raise ValueError(f"{count:,} parameters are left")
    torch.manual_seed(0)
    model = kind(config)
    errors: list[Exception] = []
    for pixels in candidates(model):
        try:
            with torch.no_grad():
                pieces = tokens_of(model, pixels())
            size = write(model, folder, pixels, pieces, types=types_of(model))
            check(model, torch.load(folder / "batches.pt")[0])
            return size
        except Exception as error:
            errors.append(error)
    raise errors[0]


def check(model: Any, batch: dict[str, Any]) -> None:
    """One forward and backward must work by itself, and must reach the tower."""
    import torch

    loss = model.train()(**batch).loss
    loss.backward()
    if not torch.isfinite(loss):
        raise ValueError(f"its loss is {loss.item()}")
    if not any(p.grad is not None for n, p in model.named_parameters() if "vision" in n or "visual" in n):
        raise ValueError("no gradient reaches its vision tower")


def types_of(model: Any) -> str:
    names = inspect.signature(model.forward).parameters
    return next((name for name in ("mm_token_type_ids", "token_type_ids") if name in names), "")


def tokens_of(model: Any, images: dict[str, Any]) -> int:
    """Of how many tokens the image is, from the features that the model makes of it."""
    import torch

    function = features_of(model)
    names = inspect.signature(function).parameters
    given = {name: value for name, value in images.items() if name in names}
    for name, value in (("vision_feature_layer", -1), ("vision_feature_select_strategy", "default")):
        if name in names:
            given[name] = getattr(model.config, name, value)
    try:
        found = function(**given)
    except TypeError:  # its signature says more than it takes
        found = function(**{name: value for name, value in given.items() if name in images})
    found = getattr(found, "pooler_output", found)
    parts = [found] if isinstance(found, torch.Tensor) else [part for part in found if part is not None]
    while not isinstance(parts[0], torch.Tensor):
        parts = [*parts[0]]
    if any(part.shape[1:] != parts[0].shape[1:] for part in parts):
        parts = parts[:1]  # what comes beside the features
    return sum(int(part.numel() // part.shape[-1]) for part in parts)


def features_of(model: Any) -> Callable[..., Any]:
    owner = model if hasattr(model, "get_image_features") else model.model
    function: Callable[..., Any] = owner.get_image_features
    return function


def candidates(model: Any) -> Iterator[Callable[[], dict[str, Any]]]:
    """Ways in which a model may want its images, the most telling of its forward first."""
    import torch

    asked = {*inspect.signature(model.forward).parameters, *inspect.signature(features_of(model)).parameters}
    size, patch = SIZE, PATCH

    def plain() -> dict[str, Any]:
        return {"pixel_values": torch.randn(1, 3, size, size)}

    def sized() -> dict[str, Any]:
        return {**plain(), "image_sizes": torch.tensor([[size, size]])}

    def tiles() -> dict[str, Any]:
        return {
            "pixel_values": torch.randn(1, 2, 3, size, size),
            "image_sizes": torch.tensor([[size, size]]),
        }

    def padded() -> dict[str, Any]:
        mask = torch.ones(1, 1, size, size, dtype=torch.bool)
        return {"pixel_values": torch.randn(1, 1, 3, size, size), "pixel_attention_mask": mask}

    def one_tile() -> dict[str, Any]:
        return {"pixel_values": torch.randn(1, 1, 3, size, size)}

    def twice() -> dict[str, Any]:
        return {**plain(), "high_res_pixel_values": torch.randn(1, 3, size, size)}

    def packed() -> dict[str, Any]:
        return {"pixel_values": torch.randn(1, 3, patch, patch * 64), "target_sizes": torch.tensor([[8, 8]])}

    def shaped() -> dict[str, Any]:
        mask = torch.ones(1, 16, dtype=torch.long)
        flat = torch.randn(1, 16, 3 * patch * patch)
        return {"pixel_values": flat, "spatial_shapes": torch.tensor([[4, 4]]), "pixel_attention_mask": mask}

    def patches(temporal: int) -> Callable[[], dict[str, Any]]:
        def made() -> dict[str, Any]:
            length = 3 * temporal * patch * patch
            return {"pixel_values": torch.randn(16, length), "image_grid_thw": torch.tensor([[1, 4, 4]])}

        return made

    if "image_grid_thw" in asked:
        yield from (patches(2), patches(1))
    if "target_sizes" in asked:
        yield packed
    if "spatial_shapes" in asked:
        yield shaped
    elif "pixel_attention_mask" in asked:
        yield padded
    if "high_res_pixel_values" in asked:
        yield twice
    if "image_sizes" in asked:
        yield from (tiles, sized)
    yield from (plain, one_tile)


def listed() -> dict[str, str]:
    """The model types that transformers lists as image-text-to-text, and the class of each."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    return dict(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
