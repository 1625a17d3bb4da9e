"""Of which models a step may leave a part unused, and whether DDP can search for it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from .sparse_experts import sparse_blocks

_TOWERS = ("vision_config", "audio_config", "mm_vision_tower")
_LANGUAGE = ("language_model", "text_model", "llm", "lm_head")
_PICTURES = {"Conv2d", "Conv3d"}


def leaves_parts_unused(model: Any) -> bool:
    """Whether it trains a tower, or experts of which each is a module."""
    experts = (parameter for block in sparse_blocks(model) for parameter in block.parameters())
    return trains_a_tower(model) or any(parameter.requires_grad for parameter in experts)


def is_reentrant(arguments: Any, model: Any) -> bool:
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


def trains_a_tower(model: Any) -> bool:
    config = getattr(model, "config", None)
    if not any(_names(config, name) for name in _TOWERS):
        return any(
            parameter.requires_grad
            for tower in _beside_the_text(model)
            for parameter in model.get_submodule(tower).parameters()
        )
    return any(
        parameter.requires_grad and not any(part in _LANGUAGE for part in name.split("."))
        for name, parameter in model.named_parameters()
    )


def _names(config: Any, part: str) -> bool:
    try:
        return getattr(config, part, None) is not None
    except Exception:  # a configuration of the model's own, which says in its own way that it has none
        return False


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
