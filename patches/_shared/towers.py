"""Where a model's forward runs the towers of its images, videos and sounds, read from the forward itself.

Models call a tower under ``if pixel_values is not None`` or ``if input_features is not None``, after they
have embedded the text. Which names a forward uses, and in which order, its code object says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from vlmpatch.api import signature

from .blank_audio import blank_audio
from .blank_image import blank_inputs, features

PIXELS = ("pixel_values", "pixel_values_images", "pixel_values_videos")
SOUND, SOUNDS = "sound", ("input_features",)
_OWN = "transformers.models."  # others who have a ``vision_tower`` may see to it themselves
_LAYERS = ("vision_feature_layers", "vision_feature_layer")  # of the tower: VipLLaVA takes several
_TEXT = ("get_input_embeddings", "embed_tokens")
_LANGUAGE = "language_model"


class Modality(NamedTuple):
    """What one tower of a model is for."""

    name: str  # of what it sees or hears, as messages say it
    given: tuple[str, ...]  # parameters of the forward that make it run the tower, once each
    calls: tuple[str, ...]  # methods of the model by which its forward does so, where there are any
    run: Callable[[Any, Any, Any], list[Any]]  # (model, dtype, device): the features of something blank


class Path(NamedTuple):
    """How a class runs its towers."""

    parameters: tuple[str, ...]  # of its forward, without self
    modalities: tuple[Modality, ...]  # in the order in which its forward runs them
    late: bool  # something runs between the text embedding and the towers
    again: bool = False  # where the towers ran, the text is embedded once more

    @property
    def once(self) -> bool:
        """Whether there is one tower, run at most once a forward."""
        return len(self.modalities) == 1 and len(self.modalities[0].given) == 1


def path_of(cls: type) -> Path | None:
    """How ``cls`` runs its towers; None for a class whose own forward does not, or not after the text."""
    code, parameters = code_of(cls), parameters_of(cls)
    if code is None or not {"input_ids", "inputs_embeds"} <= {*parameters}:
        return None
    names = list(code.co_names)
    found = {}
    for read in (_vision, _audio):
        if (begun := read(cls, names, parameters)) is not None:
            name, modality = begun
            found[names.index(name)] = modality
    text = [names.index(name) for name in _TEXT if name in names]
    if not found or not text or min(text) > min(found):
        return None
    late = len(found) > 1 or _LANGUAGE in names[: min(found)]
    again = not late and any(_embeds(getattr(cls, name, None)) for name in names)
    return Path(parameters, tuple(found[place] for place in sorted(found)), late, again)


def _embeds(method: Any) -> bool:
    """Whether it embeds the text and puts features into it: Granite Speech, whose forward has embedded it.

    One that is given the embeddings (Idefics3's ``inputs_merger``) embeds a token where it is given no text.
    """
    code = _code_within(method)
    if code is None or "inputs_embeds" in code.co_varnames[: code.co_argcount]:
        return False
    return {"get_input_embeddings", "masked_scatter"} <= {*code.co_names}


def _vision(cls: type, names: list[str], parameters: tuple[str, ...]) -> tuple[str, Modality] | None:
    name = next((name for name in _VISION if name in names), None)
    if name is None or "pixel_values" not in parameters:
        return None
    if name == "visual" and "image_grid_thw" not in parameters:
        return None
    if name == "vision_tower" and not _projected_by(cls, names):
        return None
    if name == "connector" and not ("vision_model" in names and cls.__module__.startswith(_OWN)):
        return None
    given = tuple(pixels for pixels in PIXELS if pixels in parameters)
    return name, Modality("image", given, ("get_image_features", "get_video_features"), _VISION[name])


def _audio(cls: type, names: list[str], parameters: tuple[str, ...]) -> tuple[str, Modality] | None:
    name = next((name for name in _AUDIO if name in names), None)
    given = tuple(sound for sound in SOUNDS if sound in parameters)
    if name is None or not given or (name == "audio_tower" and not _projected_by(cls, names)):
        return None
    # Qwen2-Audio asks its tower for its device before all else.
    begun = "multi_modal_projector" if name == "audio_tower" else name
    return begun, Modality(SOUND, given, ("get_audio_features",), _AUDIO[name])


def _projected_by(cls: type, names: list[str]) -> bool:
    return "multi_modal_projector" in names and cls.__module__.startswith(_OWN)


def code_of(cls: type) -> Any:
    """The code of the forward that ``cls`` itself has."""
    return _code_within(vars(cls).get("forward"))


def method_code(cls: type, name: str) -> Any:
    """The code of a method of ``cls`` or its bases, within whatever wraps it; None where there is none."""
    return _code_within(getattr(cls, name, None))


def _code_within(function: Any) -> Any:
    return getattr(_unwrapped(function), "__code__", None) if inspect.isfunction(function) else None


def _unwrapped(function: Any) -> Any:
    try:
        return inspect.unwrap(function)
    except Exception:  # what it says that it is around is anything, or itself
        return None


def parameters_of(cls: type) -> tuple[str, ...]:
    """Those of that forward, without ``self``."""
    code = code_of(cls)
    return code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount] if code else ()


# --- the parts of a model ---------------------------------------------------------------------------


def language(model: Any) -> Any:
    """The child of ``model`` that holds its text embedding; None where the embedding itself is the child."""
    embedding = model.get_input_embeddings()
    found = [getattr(model, name) for name in _with(model, embedding)]
    return next((child for child in found if child is not embedding), None)


def outside(model: Any) -> dict[str, Any]:
    """The children of ``model`` that are not its language model: the towers, the projectors."""
    text = {*_with(model, model.get_input_embeddings()), *_with(model, model.get_output_embeddings())}
    return {name: child for name, child in model.named_children() if name not in text}


def side(model: Any, path: Path, modality: Modality) -> tuple[str, ...]:
    """The names of those of them that ``modality`` needs: of several, a sound has what its method names."""
    names = tuple(outside(model))
    if len(path.modalities) == 1:
        return names
    heard = {*inspect.unwrap(type(model).get_audio_features).__code__.co_names}
    return tuple(name for name in names if (name in heard) == (modality.name == SOUND))


def _with(model: Any, part: Any) -> list[str]:
    """The names of the children of ``model`` that hold ``part``."""
    return [name for name, child in model.named_children() if any(inner is part for inner in child.modules())]


# --- one run on something blank ---------------------------------------------------------------------


def _names_of_forward(model: Any, word: str) -> tuple[str, ...]:
    """The names in the forward of the class of ``model`` that says ``word``."""
    codes = (code_of(cls) for cls in type(model).__mro__)
    return next((code.co_names for code in codes if code is not None and word in code.co_names), ())


def _by_image_features(model: Any, dtype: Any, device: Any) -> list[Any]:
    function = model.get_image_features
    found = features(function(**blank_inputs(model, function, dtype, device)))
    # Llama 4 projects in its forward what its get_image_features returns.
    if "multi_modal_projector" in _names_of_forward(model, "get_image_features"):
        found = [model.multi_modal_projector(value.reshape(-1, value.shape[-1])) for value in found]
    return found


def _by_visual(model: Any, dtype: Any, device: Any) -> list[Any]:
    made = blank_inputs(model, _visual_images, dtype, device)
    if "get_dtype" in _names_of_forward(model, "visual"):
        # Qwen2-VL up to transformers 4.51. It reads a weight from outside its layer, which ZeRO-3 answers
        # by gathering it there and then, and before every forward from then on: on all ranks or on none.
        model.visual.get_dtype()
    return features(model.visual(made["pixel_values"], grid_thw=made["image_grid_thw"]))


def _visual_images(pixel_values: Any, image_grid_thw: Any) -> None:
    """What ``get_image_features`` would take where there is none."""


def _by_vision_tower(model: Any, dtype: Any, device: Any) -> list[Any]:
    """LLaVA and its kin up to transformers 4.45."""
    import torch

    pixels = blank_inputs(model, _tower_images, dtype, device)["pixel_values"]
    asked = (getattr(model.config, name, None) for name in _LAYERS)
    layers = next((layers for layers in asked if layers is not None), None)
    if layers is None:  # PaliGemma
        return [model.multi_modal_projector(model.vision_tower(pixels).last_hidden_state)]
    seen = model.vision_tower(pixels, output_hidden_states=True).hidden_states
    chosen = [seen[layer] for layer in (layers if isinstance(layers, (list, tuple)) else [layers])]
    return [model.multi_modal_projector(torch.cat(chosen, dim=-1))]


def _tower_images(pixel_values: Any) -> None:
    """What ``get_image_features`` would take where there is none."""


def _by_connector(model: Any, dtype: Any, device: Any) -> list[Any]:
    """Idefics and SmolVLM up to transformers 4.52."""
    import torch

    pixels = blank_inputs(model, _padded_images, dtype, device)["pixel_values"][0]
    sides = (side // model.config.vision_config.patch_size for side in pixels.shape[2:])
    patches = torch.ones(1, *sides, dtype=torch.bool, device=device)
    seen = model.vision_model(pixel_values=pixels, patch_attention_mask=patches).last_hidden_state
    asks = "attention_mask" in signature(model.connector.forward).parameters  # Idefics2
    return [model.connector(seen, **({"attention_mask": patches.flatten(1)} if asks else {}))]


def _padded_images(pixel_values: Any, pixel_attention_mask: Any) -> None:
    """What ``get_image_features`` would take where there is none."""


def _by_audio_features(model: Any, dtype: Any, device: Any) -> list[Any]:
    import torch

    function = model.get_audio_features
    made = blank_audio(model, function, dtype, device)
    # Gemma 3n's forward pads a sound with the last word of the vocabulary, and its mask says what is padding.
    pads = "embed_audio" in _names_of_forward(model, "get_audio_features")
    if pads:
        made["input_features_mask"] = ~made["input_features_mask"]
    found = features(function(**made))
    if pads:
        word = torch.tensor([[model.vocab_size - 1]], device=device)
        found.append(model.embed_audio(input_ids=word))
    return found


def _by_audio_tower(model: Any, dtype: Any, device: Any) -> list[Any]:
    """Qwen2-Audio, whose forward reads a weight from outside its layer before transformers 5."""
    heard = blank_audio(model, _tower_sounds, dtype, device)["input_features"]
    if "conv1" in _names_of_forward(model, "audio_tower"):
        heard = heard.to(model.audio_tower.conv1.weight.dtype)
    return [model.multi_modal_projector(model.audio_tower(heard).last_hidden_state)]


def _tower_sounds(input_features: Any) -> None:
    """What ``get_audio_features`` would take where there is none."""


_VISION = {
    "get_image_features": _by_image_features,
    "visual": _by_visual,
    "vision_tower": _by_vision_tower,
    "connector": _by_connector,
}
_AUDIO = {"get_audio_features": _by_audio_features, "audio_tower": _by_audio_tower}
