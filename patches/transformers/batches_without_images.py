"""A rank whose batch has no image never calls the vision tower, and the other ranks wait for it.

What the user sees: under ZeRO-3 and FSDP a hang (NCCL), or ``collective mismatch`` (gloo); under DDP
``Expected to have finished reduction in the prior iteration`` or a hang; under ZeRO-1 and ZeRO-2 sizes that
do not match, or wrong sums without a word. Text-only samples beside samples with images are enough.

Why: models call their tower under ``if pixel_values is not None``. A rank that skips it makes no gradients
for DDP and ZeRO to reduce, and takes part in none of the gathers of ZeRO-3 and FSDP.

Every transformers; no model of it does more than skip.

The change, for every model whose forward calls ``get_image_features`` (or, before it existed, Qwen2-VL's
``visual``, or the ``vision_tower`` and ``multi_modal_projector`` of LLaVA's kin) after its text embedding:
where a batch has no image and other ranks that train this model would wait, the tower runs on the
smallest blank image the model accepts, right after the text embedding as it does with an image, because
ranks have to call their modules in one order. Its output is tied to the text embeddings in a way that passes
zeros back and adds no number, so that a NaN adds nothing either.

Mllama cannot be helped so: its text model leaves out its cross-attention layers for a batch without images,
and run with a blank image they would add something. Under ZeRO-3 and FSDP, where the ranks would wait for
each other forever, the rank without an image ends with an error that says so; that costs the same small
all-reduce.

Left alone: one process; a model that no DDP, FSDP or DeepSpeed engine wraps, whose rank trains by itself, as
in an ensemble; a window of DDP's ``no_sync``; a batch with images; embeddings made by the caller, who has run
the tower; a ``vision_tower`` in code of others, who may run it on every rank themselves; DDP with
``find_unused_parameters=True``, which needs no help unless nothing but the tower or the projector is trained
(it waits for the first gradient, and a text has none); a tower without trainable weights, unless its weights
are gathered; what is being compiled; models of another kind (CLIP and other dual encoders, text models).

Two cases cost one small all-reduce a forward, and only under ZeRO-3 and FSDP: models that call their tower
once for images and once more for videos, since a rank cannot know whether another has both, and evaluation
or generation, where a rank may skip the tower only if all of them do.

Upstream: https://github.com/modelscope/ms-swift/issues/3213, https://github.com/OpenBMB/MiniCPM-V/issues/644,
https://github.com/QwenLM/Qwen3-VL/issues/126, https://github.com/deepspeedai/DeepSpeed/issues/7044
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.blank_image import add_nothing, blank_inputs, features
from .._shared.compiling import compiling
from .._shared.distributed import largest, world
from .._shared.training_group import gathering_groups, reduced_together, running_ddp, waiting_groups

_PIXELS = ("pixel_values", "pixel_values_images", "pixel_values_videos")
_ENCODED = ("image_hidden_states", "mm_encoder_outputs")  # what the tower made before this forward
_OWN = "transformers.models."  # others who have a ``vision_tower`` may see to it themselves
_LAYERS = ("vision_feature_layers", "vision_feature_layer")  # of the tower: VipLLaVA takes several
_CROSSING = "cross_attention_states"
REFUSED = (
    "vlmpatch [batches-without-images]: {name} runs its vision tower and its cross-attention layers only "
    "where a batch has images. This rank has none and another has some: under ZeRO-3 and FSDP they would "
    "wait for each other for ever. Put an image into every batch, or train with DDP "
    "(find_unused_parameters=True), ZeRO-1 or ZeRO-2"
)
_ENCODE = "_prepare_multimodal_encoder_kwargs_for_generation"


def look(code: Code) -> str | None:
    """Every model must be a subclass of ``PreTrainedModel``; generation may run the tower by itself."""
    if code.class_names("PreTrainedModel") is not None:
        return None
    methods = code.class_names("GenerationMixin")
    if methods is None:
        raise Unrecognised(f"{code.module} has no class PreTrainedModel")
    return None if _ENCODE in methods else "generate() leaves the vision tower to the model's forward"


def apply(patch: Patch, module: ModuleType) -> None:
    """Wrap the forwards that skip their tower, of today's models and of each new one."""
    if not hasattr(module, "PreTrainedModel"):
        patch.wrap(module.GenerationMixin, _ENCODE, _encode_on_every_rank)
        return
    base = module.PreTrainedModel

    def after_subclass(original: Any, cls: type, /, *args: Any, **kwargs: Any) -> None:
        original(cls, *args, **kwargs)
        if patch.active:
            _wrap_forward(patch, cls)

    for cls in _subclasses(base):
        _wrap_forward(patch, cls)
    patch.wrap(base, "__init_subclass__", after_subclass)


class Path(NamedTuple):
    """How a class runs its tower, read from its forward."""

    parameters: tuple[str, ...]  # of its forward, without self
    pixels: tuple[str, ...]  # those that make it call the tower, once each
    run: Callable[[Any, Any, Any], list[Any]]  # (model, dtype, device): the features of a blank image


def path_of(cls: type) -> Path | None:
    """How ``cls`` runs its tower; None for a class whose own forward does not, or not after the text."""
    code, parameters = _code(cls), _parameters(cls)
    if code is None or not {"input_ids", "inputs_embeds", "pixel_values"} <= {*parameters}:
        return None
    names = list(code.co_names)
    run = next((run for name, run in _RUNS.items() if name in names), None)
    if run is None or not _embeds_first(names):
        return None
    if run is _by_visual and "image_grid_thw" not in parameters:
        return None
    if run is _by_tower and not ("multi_modal_projector" in names and cls.__module__.startswith(_OWN)):
        return None
    return Path(parameters, tuple(name for name in _PIXELS if name in parameters), run)


def leaves_layers_out(cls: type) -> bool:
    """Whether the language model inside ``cls`` looks at images in layers that it skips without them."""
    code, parameters = _code(cls), _parameters(cls)
    return (
        code is not None
        and {"input_ids", "pixel_values", _CROSSING} <= {*parameters}
        and {"vision_model", "language_model"} <= {*code.co_names}
    )


def _code(cls: type) -> Any:
    """Of the forward that ``cls`` itself has."""
    forward = vars(cls).get("forward")
    function = inspect.unwrap(forward) if inspect.isfunction(forward) else None
    return getattr(function, "__code__", None)


def _parameters(cls: type) -> tuple[str, ...]:
    code = _code(cls)
    return code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount] if code else ()


def _embeds_first(names: list[str]) -> bool:
    """``co_names`` lists names in the order of their first use."""
    tower = min(names.index(name) for name in _RUNS if name in names)
    text = [names.index(name) for name in ("get_input_embeddings", "embed_tokens") if name in names]
    return bool(text) and min(text) < tower


def _by_features(model: Any, dtype: Any, device: Any) -> list[Any]:
    function = model.get_image_features
    found = features(function(**blank_inputs(model, function, dtype, device)))
    # Llama 4 projects in its forward what its get_image_features returns.
    if "multi_modal_projector" in inspect.unwrap(vars(_owner(model))["forward"]).__code__.co_names:
        found = [model.multi_modal_projector(value.reshape(-1, value.shape[-1])) for value in found]
    return found


def _by_visual(model: Any, dtype: Any, device: Any) -> list[Any]:
    made = blank_inputs(model, _visual_images, dtype, device)
    if "get_dtype" in _code(_owner(model)).co_names:
        # Qwen2-VL up to transformers 4.51. It reads a weight from outside its layer, which ZeRO-3 answers
        # by gathering it there and then, and before every forward from then on: on all ranks or on none.
        model.visual.get_dtype()
    return features(model.visual(made["pixel_values"], grid_thw=made["image_grid_thw"]))


def _visual_images(pixel_values: Any, image_grid_thw: Any) -> None:
    """What ``get_image_features`` would take where there is none."""


def _by_tower(model: Any, dtype: Any, device: Any) -> list[Any]:
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


_RUNS = {"get_image_features": _by_features, "visual": _by_visual, "vision_tower": _by_tower}


def _owner(model: Any) -> type:
    return next(cls for cls in type(model).__mro__ if cls in _paths)


# Of each wrapped class; a class is a key by identity and goes when its module goes.
_paths: WeakKeyDictionary[type, Path] = WeakKeyDictionary()
_unknown: WeakSet[type] = WeakSet()  # those that did not accept our blank image
_towers: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()


def _wrap_forward(patch: Patch, cls: type) -> None:
    path = path_of(cls)
    if path is None:
        if leaves_layers_out(cls):
            _wrap_to_refuse(patch, cls)
        return
    _paths[cls] = path
    tracing = compiling()

    def on_every_rank(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
        missing = _missing(path, self, args, kwargs) if not tracing() and world() > 1 else 0
        if not missing or type(self) in _unknown:
            return original(self, *args, **kwargs)
        embedding = self.get_input_embeddings()
        handle = embedding.register_forward_hook(
            functools.partial(_after_text, patch, path, self, missing, handles := [])
        )
        handles.append(handle)
        try:
            return original(self, *args, **kwargs)
        finally:
            handle.remove()

    patch.wrap(cls, "forward", on_every_rank)


def _wrap_to_refuse(patch: Patch, cls: type) -> None:
    parameters = _parameters(cls)
    tracing = compiling()

    def refusing(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        own = int(any(given.get(name) is not None for name in ("pixel_values", _CROSSING)))
        groups = gathering_groups(self.children()) if self.training and not tracing() and world() > 1 else []
        text = next((t for t in map(given.get, ("input_ids", "inputs_embeds")) if t is not None), self)
        if groups and largest(own, groups, text.device) > own:
            raise RuntimeError(REFUSED.format(name=cls.__name__))
        return original(self, *args, **kwargs)

    patch.wrap(cls, "forward", refusing)


def _missing(path: Path, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How often the tower has to run on a blank image in this forward."""
    import torch

    given = {**dict(zip(path.parameters, args, strict=False)), **kwargs}
    text = given.get("input_ids")
    if text is None or given.get("inputs_embeds") is not None:
        return 0
    own = sum(given.get(name) is not None for name in path.pixels)
    encoded = any(_holds(given.get(name)) for name in _ENCODED)
    training = model.training and torch.is_grad_enabled()
    if training and (own or encoded) and len(path.pixels) == 1:
        return 0
    groups = waiting_groups(_image_side(model))
    if not groups:
        alone = own or encoded or not reduced_together(_image_side(model))
        return int(training and not alone and not _left_to_ddp(model))
    if training and len(path.pixels) == 1:
        return 1
    return max(largest(own, groups, text.device), int(training)) - own


def _holds(encoded: Any) -> bool:
    return encoded is not None and (not isinstance(encoded, dict) or bool(encoded))


def _left_to_ddp(model: Any) -> bool:
    """Whether DDP passes over what a batch did not use: it does so as the first gradient arrives."""
    side = [p for module in _image_side(model) for p in module.parameters()]
    ddp = running_ddp(side)
    if ddp is None or ddp.static_graph or not ddp.find_unused_parameters:
        return False
    known = {id(p) for p in side}
    return any(p.requires_grad and id(p) not in known for p in ddp.module.parameters())


def _image_side(model: Any) -> list[Any]:
    """The parts of ``model`` that are not its language model: the tower, the projector."""
    names = _towers.get(model)
    if names is None:
        language = {*_with(model, model.get_input_embeddings()), *_with(model, model.get_output_embeddings())}
        names = _towers[model] = tuple(name for name, _ in model.named_children() if name not in language)
    return [getattr(model, name) for name in names]


def _with(model: Any, part: Any) -> list[str]:
    """The names of the children of ``model`` that hold ``part``."""
    return [name for name, child in model.named_children() if any(inner is part for inner in child.modules())]


def _after_text(
    patch: Patch,
    path: Path,
    model: Any,
    missing: int,
    handles: list[Any],
    module: Any,
    args: Any,
    output: Any,
) -> Any:
    """Forward hook of the text embedding: run the tower, and tie it to what the embedding returned."""
    for handle in handles:
        handle.remove()  # the model may look up more embeddings in this forward
    found = [value for _ in range(missing) for value in _run_blank(patch, path, model, output)]
    return add_nothing(output, [*found, *_own_parameters(model)]) if found else output


def _own_parameters(model: Any) -> list[Any]:
    """Those that the forward itself puts between the features: LLaVA-NeXT's ``image_newline`` up to 4.51."""
    names = _code(_owner(model)).co_names
    return [parameter for name, parameter in model.named_parameters(recurse=False) if name in names]


def _run_blank(patch: Patch, path: Path, model: Any, like: Any) -> list[Any]:
    import torch

    dtype = next(
        (p.dtype for part in _image_side(model) for p in part.parameters() if p.is_floating_point()),
        like.dtype,
    )
    cuda = [like.device] if like.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=cuda):  # dropout in the tower must not move the model's own
            return path.run(model, dtype, like.device)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        _unknown.add(type(model))
        patch.warn(
            type(model).__name__,
            f"{type(model).__name__} does not accept the blank image that a batch without images needs where "
            f"other ranks have some ({type(error).__name__}: {error}); such batches stay as they are. Put an "
            "image into every batch",
            own=True,
        )
        return []


def _encode_on_every_rank(original: Any, self: Any, /, model_kwargs: Any, *args: Any, **kwargs: Any) -> Any:
    """``generate()`` of transformers from 5.2x on runs the tower before its first forward."""
    import torch

    model = self.base_model
    path = next((_paths[cls] for cls in type(model).__mro__ if cls in _paths), None)
    if path is None or world() == 1 or not (groups := waiting_groups(_image_side(model))):
        return original(self, model_kwargs, *args, **kwargs)
    own = sum(model_kwargs.get(name) is not None for name in path.pixels)
    device = next((v.device for v in model_kwargs.values() if isinstance(v, torch.Tensor)), self.device)
    missing = largest(own, groups, device) - own  # before anything is gathered: ranks meet here first
    result = original(self, model_kwargs, *args, **kwargs)
    parameter = next(p for part in _image_side(model) for p in part.parameters() if p.is_floating_point())
    for _ in range(missing):
        path.run(model, parameter.dtype, device)
    return result


def _subclasses(cls: type) -> list[type]:
    children: list[type] = cls.__subclasses__()
    return [found for child in children for found in (child, *_subclasses(child))]
