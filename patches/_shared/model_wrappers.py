"""Modules of a user's own whose forward calls a tower by itself: around a model, or a model of others."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from .towers import PIXELS, outside, parameters_of, path_of

MAKE_FEATURES = {"get_image_features", "get_video_features", "get_audio_features"}
_LIBRARIES = ("torch", "transformers", "peft", "deepspeed", "accelerate")
# What a model of others runs for an image, before its language model: LLaVA's parts, Idefics' parts.
_TOWERS = ({"vision_tower", "multi_modal_projector"}, {"vision_model", "connector"})


def wrapper_in(root: Any) -> Any:
    """The module of ``root`` whose own forward calls a tower, of a model that it is around or its own."""
    return next((module for module in root.modules() if calls_a_tower(module) or own_towers(module)), None)


def own_towers(module: Any) -> set[str]:
    """The children that ``module`` runs for an image, if it is a model in code of others; else none."""
    own = own_classes(type(module))
    if not own or any(path_of(cls) is not None for cls in type(module).__mro__):
        return set()
    asked = next((parameters_of(cls) for cls in own if "forward" in vars(cls)), ())
    if not {*PIXELS} & {*asked}:
        return set()
    run = names_of_forward(own) & {name for name, _ in module.named_children()}
    return next((parts for parts in _TOWERS if parts <= run), set())


def calls_a_tower(module: Any) -> bool:
    """Whether the forward that ``module`` has beside any library's names a tower of a model in it."""
    own = own_classes(type(module))
    if not own or any(path_of(cls) is not None for cls in own):
        return False
    names = names_of_forward(own)
    models = models_in(module)
    return bool(models) and bool(names & MAKE_FEATURES.union(*map(outside, models)))


def models_in(wrapper: Any) -> list[Any]:
    """Those in ``wrapper`` that run a tower in their forward, and those of transformers around them."""
    known = [inner for inner in wrapper.modules() if any(map(path_of, type(inner).__mro__))]
    return [
        inner
        for inner in wrapper.modules()
        if inner in known
        or (type(inner).__module__.startswith("transformers.") and any(m in known for m in inner.children()))
    ]


def own_classes(cls: type) -> list[type]:
    """Those of its bases that belong to no library that models and engines come from."""
    return [
        base
        for base in cls.__mro__
        if base.__module__.partition(".")[0] not in (*_LIBRARIES, "builtins", "abc", "typing")
    ]


def names_of_forward(own: list[type]) -> set[str]:
    """Every name in the forward of ``own``, and in the methods of theirs that it names."""
    names: set[str] = set()
    left, seen = ["forward"], {"forward"}
    while left:
        names |= _names_of_method(own, left.pop())
        new = {name for name in names - seen if any(name in vars(cls) for cls in own)}
        left += new
        seen |= new
    return names


def _names_of_method(own: list[type], method: str) -> set[str]:
    """Those of its bases too, as far as ``super()`` leads."""
    found: set[str] = set()
    for code in (_code(vars(cls).get(method)) for cls in own):
        names = {*_names(code)} if code is not None else {"super"}
        found |= names
        if "super" not in names:
            break
    return found


def _code(method: Any) -> CodeType | None:
    function = method.fget if isinstance(method, property) else method
    found = inspect.unwrap(function) if callable(function) else None
    return found.__code__ if isinstance(found, FunctionType) else None


def _names(code: CodeType) -> Iterator[str]:
    """With those of the functions within it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
