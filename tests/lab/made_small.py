"""A small model of any class that transformers has, and something that it takes.

How small it can be is found by trying: sizes that many configurations have a name for, then the class's own
proportions, each width divided by one number. What it is fed is found the same way, by the names of what its
forward takes. ``fed`` returns the first model that trains on something.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.families._shared import small
from tests.families._shared.sizes import IMAGE

LARGEST = 70_000_000  # parameters of a model that is still small: some have widths that nothing names
CACHES = ("past_key_values", "hidden_states", "attentions", "cross_attentions", "decoder_hidden_states")
FORWARDLESS = "it has no forward"
ROWS, LENGTH = 2, 9
PLACES = 4  # of an image in a text
Inputs = dict[str, Any]

# --- small configurations --------------------------------------------------------------------------

NATURAL = {name: value for name, value in small.LANGUAGE.items() if not name.endswith("layer_types")}
MORE = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": 128,
    "hidden_size_per_layer_input": 16,
    "laurel_rank": 8,
    "activation_sparsity_pattern": 0.0,
    "image_size": 32,
    "patch_size": 8,
    "rotary_dim": 8,
    "default_language": "en_XX",
    "num_mel_bins": 16,
    "max_source_positions": 16,
    "max_target_positions": 64,
    "mask_time_prob": 0.0,
    "layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "drop_path_rate": 0.0,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "prediction_length": 4,
    "context_length": 8,
    "lags_sequence": [1, 2],
    "vocabulary_map": dict.fromkeys(("<image>", "<|extra_200|>", "<|visual token 000000|>"), IMAGE),
    "downsample_rate": "1/2",
    "deepstack_layer_map": [[0, 0]],
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "clip_qkv": 8.0,
}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
KINDS = {"layer_types": ["sliding_attention", "full_attention"] * 2}
# Sizes of heads and the rotary embedding as the class has them: what it derives from others fits those only.
DERIVED = {
    name: value
    for name, value in {**NATURAL, **MORE}.items()
    if name != "head_dim" and not name.startswith("rope_")
}
LATENT = {  # keys and values come out of a narrower tensor
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 4,
    "indexer_n_heads": 2,
    "indexer_head_dim": 16,
    "indexer_budget": 4,
    "indexer_compress_ratio": 2,
}
HYBRID = {  # every other layer attends, the rest keep a state
    "attn_layer_indices": [1, 3],
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "full_attention_interval": 2,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "use_mamba_kernels": False,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_d_ssm": 128,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "state_size": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
WHOLE = {"partial_rotary_factor": 1.0}
CHOICES = (
    {**NATURAL, **MORE},
    {**NATURAL, **MORE, **KINDS},
    {**NATURAL, **MORE, **KINDS, "rope_parameters": dict.fromkeys(KINDS["layer_types"], PLAIN)},
    {**NATURAL, **MORE, **small.MROPE},
    {**NATURAL, **MORE, **WHOLE, "mrope_section": [3, 3, 2]},
    NATURAL,
    small.LANGUAGE,
    DERIVED,
    {**DERIVED, **LATENT},
    {**DERIVED, **HYBRID},
    {**DERIVED, **LATENT, **HYBRID},
)
# In a class's own proportions: what is a width is said by what it is not.
NARROWER = (16, 8, 32)
LAYERS = 4
SEARCH = 10.0  # seconds on a processor after which no other size is tried
REPAIRS = 8  # of one configuration
GROUPS = 32  # into which channels are often divided
WORDS = 512  # of a vocabulary
NO_WIDTH = re.compile(
    r"vocab|position|length|seq|token|_ids?$|index|ima?ge?_|image|patch|window|frame|kernel|stride|bins?$|max_|"
    r"num_|n_ctx|chunk|theta|sampling|block|bucket|distance|heads$|n_head$|types?$|offset|duration|freq|lags|fft|hop"
)
DEPTH = re.compile(r"layers$|n_layer$|^depths?$|(?<!per_)layer_num$|num_blocks$|^num_layer$")
LAYERS_NAMED = ("feature_layer", "feature_layers", "deepstack_visual_indexes", "out_indices")
UNSAID = {  # where a class says nothing of its own
    "attn_layer_indices": [1, 3],
    **{name: DERIVED[name] for name in ("n_routed_experts", "n_shared_experts", "num_experts")},
    **{name: DERIVED[name] for name in ("vocabulary_map", "downsample_rate", "deepstack_layer_map")},
    **{name: value for name, value in LATENT.items() if name.startswith("indexer_")},
}
UNNAMED = {"rope_theta": 1e4, "shared_expert_intermediate_size": 32}  # by the class; its checkpoints have it
PERIOD = {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}


def configurations(own: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Ways of making a small one of the configuration ``own``, the smaller first."""
    yield from (_named(own, sizes) for sizes in CHOICES)
    yield from (_narrowed(own, factor) for factor in NARROWER)


def _named(own: Callable[[], Any], sizes: dict[str, Any]) -> Callable[[], Any]:
    return lambda: shrunk(own(), sizes)


def _narrowed(own: Callable[[], Any], factor: int) -> Callable[[], Any]:
    return lambda: narrowed(own(), factor)


def owned(kind: Any) -> Iterator[Callable[[], Any]]:
    """What may be the configuration of ``kind``: its class's own, the one its constructor names, a part."""
    said = inspect.signature(kind.__init__).parameters.get("config")
    named = said.annotation if said else None
    if isinstance(named, str):
        named = getattr(sys.modules[kind.__module__], named, None)
    if inspect.isclass(named) and hasattr(named, "to_dict") and named is not kind.config_class:
        yield named
    yield kind.config_class
    for name in getattr(kind.config_class, "sub_configs", {}):
        yield functools.partial(_part, kind.config_class, name)


def _part(of: Callable[[], Any], name: str) -> Any:
    return getattr(of(), name)


def shrunk(config: Any, sizes: dict[str, Any]) -> Any:
    """``config`` with every part of it small, and nothing in it left to chance."""
    parts = {
        name: shrunk(value, small.TOWER if "vision" in name else sizes).to_dict()
        for name, value in vars(config).items()
        if hasattr(value, "to_dict") and name != "generation_config"
    }
    said = small.known(config, sizes | dict.fromkeys(small.IMAGE_TOKENS, IMAGE))
    said = {name: value for name, value in said.items() if not _is_derived(config, name)}
    if "mrope_section" in sizes:
        sections = {name: sizes[name] for name in ("mrope_section", *WHOLE) if name in sizes}
        rope = {**PLAIN, **sections}
        said |= {name: rope for name in ("rope_parameters", "rope_scaling") if hasattr(config, name)}
    said |= {name: _within(value) for name, value in vars(config).items() if name.endswith(LAYERS_NAMED)}
    return type(config)(**(said | _by_chance(config) | parts))


def _within(layers: Any) -> Any:
    """Layers that a model of two has, in place of those named."""
    if isinstance(layers, (list, tuple)):
        return type(layers)([*range(2)][-len(layers) :])
    return min(layers, 1) if isinstance(layers, int) and layers > 0 else layers


def _is_derived(config: Any, name: str) -> bool:
    name = type(config).attribute_map.get(name, name)
    own = inspect.getattr_static(type(config), name, None)
    return isinstance(own, property) and own.fset is None


def _by_chance(config: Any) -> dict[str, float]:
    return {name: 0.0 for name, own in vars(config).items() if _is_chance(name, own)}


def _is_chance(name: str, own: Any) -> bool:
    return isinstance(own, float) and any(word in name for word in ("drop", "jitter", "mask_time_prob"))


def narrowed(config: Any, factor: int) -> Any:
    """``config`` in its own proportions: few layers, one of each kind; widths divided by ``factor``."""
    own = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    depth = getattr(config, "num_hidden_layers", None)
    kept = _kept(own, depth) if isinstance(depth, int) else [*range(LAYERS)]
    said: dict[str, Any] = {}
    for name, value in own.items():
        if hasattr(value, "to_dict"):
            if name != "generation_config":
                said[name] = narrowed(value, factor).to_dict()
        elif isinstance(value, (list, tuple)) and value:
            by_layer = len(value) == depth and name not in ("hidden_sizes", "depths")
            said[name] = (
                type(value)(value[layer] for layer in kept)
                if by_layer
                else type(value)(_of_each(name, [*value], factor, kept))
            )
        elif isinstance(value, int) and not isinstance(value, bool):
            said[name] = _of_one(name, value, factor, len(kept))
    said = {name: value for name, value in said.items() if value != own[name]} | _by_chance(config)
    said |= {name: value for name, value in PERIOD.items() if name in own}
    said |= {name: value for name, value in UNSAID.items() if own.get(name, 0) is None}
    return type(config)(**said)


def _kept(own: dict[str, Any], depth: int) -> list[int]:
    """Which layers stay: the first of each kind, and more from the first on."""
    lists = [value for value in own.values() if isinstance(value, (list, tuple)) and len(value) == depth]
    kinds = [str([each[layer] for each in lists]) for layer in range(depth)]
    first = [layer for layer in range(depth) if kinds.index(kinds[layer]) == layer]
    more = [layer for layer in range(depth) if layer not in first]
    return sorted([*first, *more[: max(0, LAYERS - len(first))]])


def _of_one(name: str, value: int, factor: int, depth: int) -> int:
    if "vocab" in name:
        return min(value, WORDS)
    if re.search(r"token_(id|index)$", name):
        return value if value < WORDS else WORDS // 2 + value % (WORDS // 2)
    if DEPTH.search(name):
        return min(value, depth)
    least = GROUPS if "channels" in name else 1
    return max(least, value // factor) if value >= 4 * factor and not NO_WIDTH.search(name) else value


def _of_each(name: str, values: list[Any], factor: int, kept: list[int]) -> list[Any]:
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    if whole and name.endswith("depths"):
        return [min(value, 2) for value in values]
    if whole and re.search(r"indices|indexes|idxs?$|_layers$", name):
        return [place for place, layer in enumerate(kept) if layer in values] or values[:1]
    return [_of_one(name, value, factor, len(kept)) for value in values] if whole else values


# --- small models ----------------------------------------------------------------------------------


def made(kind: Any, configuration: Callable[[], Any]) -> Any:
    """A model of the class ``kind``; ``configuration`` is called anew for each, for some change theirs."""
    import torch

    torch.manual_seed(0)
    with contextlib.suppress(RuntimeError, NotImplementedError), torch.device("meta"):
        _refuse_large(kind(configuration()))  # some ask for numbers, which meta has not
    model = kind(configuration())
    _refuse_large(model)
    for parameter in model.parameters():
        if not parameter.any():  # gates that start at zero would hide their gradients
            torch.nn.init.normal_(parameter, std=0.02)
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return model


def _refuse_large(model: Any) -> None:
    count = sum(parameter.numel() for parameter in model.parameters())
    if count > LARGEST:
        raise ValueError(f"{count:,} parameters are left")


# --- what they are fed -----------------------------------------------------------------------------


def feeds(model: Any) -> Iterator[Inputs]:
    """What the model may take, by the names of its forward's parameters; the likelier first."""
    import torch

    names = inspect.signature(model.forward).parameters
    with contextlib.suppress(Exception):  # a model that takes no images, or none of these
        yield from _pictured(model)
    config, ids = model.config, torch.randint(5, 100, (ROWS, LENGTH))
    end = getattr(config, "eos_token_id", None)
    if isinstance(end, int) and end < 128:
        ids[:, -1] = end  # some read the last of these
    offered = _offered(model)
    text: Inputs = {}
    if "input_ids" in names or {*names} == {"args", "kwargs"}:
        text["input_ids"] = ids
        if "attention_mask" in names:
            text["attention_mask"] = torch.ones_like(ids)
    if "decoder_input_ids" in names:
        text["decoder_input_ids"] = ids[:, :7]
    if "bbox" in names:
        text["bbox"] = torch.zeros(ROWS, LENGTH, 4, dtype=torch.long)
    taken = [
        name
        for name, parameter in names.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in text
    ]
    if missing := [name for name in taken if name not in offered]:
        raise TypeError(f"nothing is known to offer as {', '.join(missing)}")
    every = itertools.product(*(offered[name] for name in taken))
    wanted = [dict(zip(taken, each, strict=True)) for each in itertools.islice(every, 24)]
    without = {name: value for name, value in text.items() if name != "decoder_input_ids"}
    for needed in wanted:
        if text or needed:
            yield {**text, **needed}
            yield {**without, **needed}
    if text:
        yield {"input_ids": ids[:, None].expand(ROWS, 2, LENGTH).contiguous()}  # two choices of each
        yield {"input_ids": ids[:1].expand(ROWS * 4, LENGTH)}  # four codebooks
        books = _number(config, "num_codebooks", 4)
        yield from ({"input_ids": ids[..., None].expand(ROWS, LENGTH, each)} for each in (books, books + 1))
        if "decoder_input_ids" in text:
            yield {**text, "decoder_input_ids": ids[:1, :7].expand(ROWS * 4, 7)}
            channels = getattr(getattr(config, "decoder_config", config), "num_channels", 4)
            yield {**text, "decoder_input_ids": ids[:, :7, None].expand(ROWS, 7, channels)}
    for needed in wanted:
        for name in offered:
            if name in names and name not in needed and name not in text:
                for more in offered[name]:
                    if name != "inputs_embeds":  # it takes the place of the text
                        yield {**text, **needed, **_beside(model, name), name: more}
                    yield {**needed, **_beside(model, name), name: more}


def _beside(model: Any, name: str) -> Inputs:
    """What a forward wants beside the argument ``name``, where it has a parameter for it."""
    import torch

    places = torch.arange(LENGTH).expand(ROWS, LENGTH) < PLACES
    found = {"pixel_values": {"image_embeds_position_mask": places.long()}}.get(name, {})
    names = inspect.signature(model.forward).parameters
    return {other: value for other, value in found.items() if other in names}


def _pictured(model: Any) -> Iterator[Inputs]:
    """Text with an image in it, where the model says what it makes of images."""
    import torch

    names = inspect.signature(model.forward).parameters
    token = next(
        (value for name in small.IMAGE_TOKENS if isinstance(value := getattr(model.config, name, None), int)),
        None,
    )
    for pixels in small.candidates(model) if token is not None else ():
        images = pixels()
        with contextlib.suppress(Exception):
            with torch.no_grad():
                pieces = small.tokens_of(model, images)
            ids = torch.randint(5, 100, (1, pieces + LENGTH))
            ids[0, 3 : 3 + pieces] = token
            text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            types = {
                name: (ids == token).long()
                for name in ("mm_token_type_ids", "token_type_ids")
                if name in names
            }
            yield {**text, **types, **images}


def _offered(model: Any) -> dict[str, list[Any]]:
    """Tensors by the names that forwards have for them."""
    import torch

    def some(*shape: int) -> Any:
        return torch.randn(shape)

    def ones(*shape: int) -> Any:
        return torch.ones(shape, dtype=torch.long)

    config = model.config
    seen = config if hasattr(config, "image_size") else getattr(config, "vision_config", config)
    size, channels = _number(seen, "image_size", 32), _number(seen, "num_channels", 3)
    patch = _number(seen, "patch_size", 14)
    width = channels * patch * patch
    frames = 2 * _number(config, "max_source_positions", 16)
    hidden = _number(config, "hidden_size", _number(config, "d_model", 64))
    bins = {
        _number(each, name, 0)
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
    moving = _number(seen, "num_frames", 4)
    images = [
        some(ROWS, channels, size, size),
        some(ROWS, moving, channels, size, size),
        some(ROWS, channels, moving, size, size),
        some(ROWS, 1, channels, size, size),
        some(ROWS, 16, width),
        some(16, width * _number(seen, "temporal_patch_size", 2)),
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
    acts, poses = _number(config, "max_action_dim", 32), _number(config, "max_state_dim", 32)
    grid = [torch.tensor([[1, 4, 4]])]
    length = _number(config, "context_length", 8) + max(getattr(config, "lags_sequence", None) or [0])
    times, variates = _number(config, "num_time_features", 1), _number(config, "num_input_channels", 1)
    ahead = _number(config, "prediction_length", 4)
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
        "actions": [some(ROWS, _number(config, "chunk_size", 50), acts)],
        "action_embeds": states[:1],
        "conditional_embeddings": [some(ROWS, _number(config, "projection_dim", 64))],
        "num_patches": [16],
    }


def _number(config: Any, name: str, otherwise: int) -> int:
    try:
        found = getattr(config, name)
    except Exception:
        return otherwise
    found = found[0] if isinstance(found, (list, tuple)) and found else found
    return found if isinstance(found, int) else otherwise


def fed(kind: Any, seconds: float = SEARCH) -> tuple[Any, Inputs]:
    """A small model of the class, and something that it takes; ``seconds`` on a processor go into the search.

    Raises:
        Exception: where it takes nothing of what is offered, what became of the first model that could be
            made, or why none could.
    """
    import torch

    if kind.forward is torch.nn.Module.forward:
        raise NotImplementedError(FORWARDLESS)
    until = time.process_time() + seconds
    evaluated: list[tuple[Any, Inputs]] = []  # by what does not train
    errors: list[Exception] = []
    refused: list[Exception] = []
    for own in owned(kind):
        for model in models(kind, own, errors):
            if time.process_time() > until:
                break
            try:
                for inputs in feeds(model):
                    error = refusal(model, inputs, own)
                    if error is None and refusal(model.train(), inputs, own) is None:
                        return model.eval(), inputs
                    if error is None:
                        evaluated.append((model.eval(), inputs))
                    refused.append(error or ValueError("it does not train"))
            except Exception as error:
                refused.append(error)
        if refused:
            break
    if evaluated:
        return evaluated[0]
    raise [*refused, *errors, ValueError("nothing is offered to it")][0]


def whole(kind: Any) -> Any:
    """The class of the same module that has one of ``kind`` in it and trains it, where one can be made."""
    for other in vars(sys.modules[kind.__module__]).values():
        if hasattr(other, "config_class") and other is not kind and _builds(other, kind):
            with contextlib.suppress(Exception):
                model, _ = fed(other, SEARCH / 4)
                parts = [part for part in model.modules() if type(part) is kind]
                if any(weight.grad is not None for part in parts for weight in part.parameters()):
                    return other
    return None


def _builds(other: Any, kind: Any) -> bool:
    return inspect.isclass(other) and bool(
        re.search(rf"\b{kind.__name__}(\(|\._from_config\()", inspect.getsource(other.__init__))
    )


def refusal(model: Any, inputs: Inputs, own: Callable[[], Any]) -> Exception | None:
    """Why the model does not train on ``inputs``; what its configuration lacks is added where it is known."""
    missing: dict[tuple[type, str], Any] = {}
    while True:
        try:
            trains(model, inputs)
            return None
        except Exception as error:
            if not isinstance(error, AttributeError) or not _is_known(error, own, missing):
                return error
            setattr(error.obj, error.name or "", missing[type(error.obj), error.name or ""])


def trains(model: Any, inputs: Inputs) -> None:
    """One forward and backward of ``model``."""
    import torch

    torch.manual_seed(0)
    value(model(**inputs)).backward()


def models(kind: Any, own: Callable[[], Any], errors: list[Exception]) -> Iterator[Any]:
    """Small models of the class with a configuration like ``own``; ``errors`` gets why others are none."""
    tried: list[Any] = []
    for configuration in configurations(own):
        missing: dict[tuple[type, str], Any] = {}
        for _ in range(REPAIRS):
            again = functools.partial(_amended, configuration, missing)
            try:
                if not missing and again().to_dict() in tried:
                    break
                tried.append(again().to_dict())
                model = made(kind, again).eval()
            except Exception as error:
                errors.append(error)
                if not isinstance(error, AttributeError) or not _is_known(error, own, missing):
                    break
            else:
                yield model
                break


def _is_known(error: AttributeError, own: Callable[[], Any], missing: dict[tuple[type, str], Any]) -> bool:
    """Whether what a configuration does not have is known from elsewhere; ``missing`` has it then.

    A checkpoint's configuration says more than the class does, and a part is asked for what the whole has.
    """
    name = error.name or ""
    key = (type(error.obj), name)
    if not hasattr(error.obj, "to_dict") or key in missing:
        return False
    found = [{**NATURAL, **MORE, **LATENT, **HYBRID, **UNNAMED}, *map(vars, _parts(own()))]
    known = [each[name] for each in found if each.get(name) is not None]
    if known:
        missing[key] = known[0]
    return bool(known)


def _amended(configuration: Callable[[], Any], missing: dict[tuple[type, str], Any]) -> Any:
    config = configuration()
    for part in _parts(config):
        for (kind, name), value in missing.items():
            if type(part) is kind:
                setattr(part, name, value)
    return config


def _parts(config: Any) -> list[Any]:
    """A configuration and all that it holds."""
    inner = [value for value in vars(config).values() if hasattr(value, "to_dict")]
    return [config, *(part for each in inner for part in _parts(each))]


def value(outputs: Any) -> Any:
    """A number that depends on everything the model puts out, but for what it also keeps."""
    import torch

    total = None
    for tensor in _put_out(outputs):
        weight = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1))
        term = (tensor.float() * weight).sum() / tensor.numel() ** 0.5
        total = term if total is None else total + term
    if total is None:
        raise ValueError("nothing that it puts out requires grad")
    return total


def size(outputs: Any) -> float:
    """How large what goes into that number is: it may be small by chance, and all of it rounding."""
    return float(sum(tensor.norm() / tensor.numel() ** 0.5 for tensor in _put_out(outputs)))


def _put_out(outputs: Any) -> Iterator[Any]:
    import torch

    named = outputs.items() if hasattr(outputs, "items") else enumerate(_flat(outputs))
    for name, part in named:
        for tensor in () if name in CACHES else _flat(part):
            if torch.is_floating_point(tensor) and tensor.requires_grad:
                yield tensor


def _flat(part: Any) -> list[Any]:
    import torch

    if isinstance(part, torch.Tensor):
        return [part]
    return [tensor for each in part for tensor in _flat(each)] if isinstance(part, (list, tuple)) else []
