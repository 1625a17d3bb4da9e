"""HF Trainer, DDP, checkpointing: ``Expected to have finished reduction in the prior iteration``.

What the user sees: that error, or a hang, when a vision-language model is tuned with gradient checkpointing
on. The same run trains with checkpointing off.

Why: the Trainer sets ``find_unused_parameters = not is_gradient_checkpointing``, a rule of the days of
reentrant checkpointing, which DDP's search breaks. Parts of a tower are never used (LLaVA takes the features
of the last layer but one, SigLIP's ``post_layernorm`` feeds a pooled output nobody reads), a rank without an
image uses none of it, and an expert no token was routed to is not used either. Non-reentrant checkpointing
and the search get on well.

Since the Trainer's first DDP; transformers 4.45 to 5.23 have the rule.

The change: where the user said nothing, the model has a vision or audio tower that is being trained, or a
module an expert, and its checkpointing is non-reentrant, the search stays on, as it is with checkpointing
off. A tower is known by what the configuration says, else by a convolution over pictures that lies beside the
embedding of a text: Ovis and Phi-3-vision have names of their own. A dense text model, a model of pictures
alone, a frozen tower, ``use_reentrant=True``, a checkpointing that is not torch's (``use_unsloth_gc``) and an
explicit ``ddp_find_unused_parameters`` see no change.

Upstream: https://github.com/huggingface/transformers/pull/4659
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.sparse_experts import sparse_blocks

_TOWERS = ("vision_config", "audio_config", "mm_vision_tower")
# Where the rule stands, before transformers 5 and from then on.
_METHODS = ("_wrap_model", "_build_accelerator_args")
_LANGUAGE = ("language_model", "text_model", "llm", "lm_head")
_PICTURES = {"Conv2d", "Conv3d"}


def look(code: Code) -> str | None:
    """The rule must be in one of the two methods."""
    if code.class_names("Trainer") is None:
        raise Unrecognised(f"{code.module} has no class Trainer")
    return None if _method(code) else "the Trainer searches for unused parameters whatever the checkpointing"


def _method(code: Code) -> str | None:
    for method in _METHODS:
        function = code.function(f"Trainer.{method}")
        if function is not None and "find_unused" in function and "checkpointing" in function:
            return method
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Switch the search on again in what the Trainer hands to accelerate."""

    def after_wrap(original: Any, self: Any, /, model: Any, *args: Any, **kwargs: Any) -> Any:
        wrapped = original(self, model, *args, **kwargs)
        _search(patch, self, model, getattr(self.accelerator, "ddp_handler", None))
        return wrapped

    def after_build(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
        built = original(self, *args, **kwargs)
        for handler in built.get("kwargs_handlers") or ():
            _search(patch, self, self.model, handler)
        return built

    if hasattr(module.Trainer, "_build_accelerator_args"):
        patch.wrap(module.Trainer, "_build_accelerator_args", after_build)
    else:
        patch.wrap(module.Trainer, "_wrap_model", after_wrap)


def _search(patch: Patch, trainer: Any, model: Any, handler: Any) -> None:
    if getattr(trainer.args, "ddp_find_unused_parameters", None) is not None:
        return
    if getattr(handler, "find_unused_parameters", None) is not False:
        return
    if getattr(trainer.args, "ddp_static_graph", None) or _reentrant(trainer.args, model):
        return
    if _trains_a_tower(model) or any(True for _ in sparse_blocks(model)):
        patch.replace(handler, "find_unused_parameters", True)


def _reentrant(arguments: Any, model: Any) -> bool:
    """What the model was told, else what it is going to be told."""
    told = list(_checkpoint_functions(model))
    if told:  # what is no partial says nothing, and may run a backward of its own
        return any(getattr(each, "keywords", {}).get("use_reentrant") is not False for each in told)
    names = ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")
    said: dict[str, Any] = next((v for name in names if (v := vars(arguments).get(name))), {})
    return bool(said.get("use_reentrant", False))


def _checkpoint_functions(model: Any) -> Iterator[Any]:
    """Those of the model's blocks, inside of what LLaMA-Factory puts around; torch's own was told nothing."""
    for module in model.modules():
        function = getattr(module, "_gradient_checkpointing_func", None)
        if getattr(module, "gradient_checkpointing", False) and function is not None:
            inner = inspect.unwrap(function)
            if getattr(inner, "__module__", None) != "torch.utils.checkpoint":
                yield inner


def _trains_a_tower(model: Any) -> bool:
    config = getattr(model, "config", None)
    if not any(getattr(config, name, None) is not None for name in _TOWERS):
        return any(
            parameter.requires_grad
            for tower in _beside_the_text(model)
            for parameter in model.get_submodule(tower).parameters()
        )
    return any(
        parameter.requires_grad and not any(part in _LANGUAGE for part in name.split("."))
        for name, parameter in model.named_parameters()
    )


def _beside_the_text(model: Any) -> set[str]:
    """The largest modules that look at pictures and do not hold the embedding of the text."""
    text = next(_texts(model), None)
    if text is None:
        return set()
    modules = dict(model.named_modules())
    around = {place for name, module in modules.items() if module is text for place in _path(name)}
    if not around:
        return set()
    return {
        next(place for place in _path(name) if place not in around)
        for name, module in modules.items()
        if name not in around and _is_a(module, _PICTURES)
    }


def _texts(model: Any) -> Iterator[Any]:
    """The embeddings of text of the models in it: Ovis does not hand on what its language model says."""
    for module in model.modules():
        try:
            found = module.get_input_embeddings()
        except Exception:  # code of the model's own, which is not asked elsewhere
            continue
        if _is_a(found, {"Embedding"}):
            yield found


def _path(name: str) -> list[str]:
    """The names of all that holds the module of this name, the largest first, and its own."""
    parts = name.split(".")
    return ["", *(".".join(parts[:end]) for end in range(1, len(parts) + 1))]


def _is_a(module: Any, names: set[str]) -> bool:
    return any(base.__name__ in names for base in type(module).__mro__)
