"""Modules of a user's own whose forward calls a tower by itself: around a model, or a model of others."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from vlmpatch.api import signature

from .towers import PIXELS, outside, parameters_of, path_of

MAKE_FEATURES = {"get_image_features", "get_video_features", "get_audio_features"}
_LIBRARIES = ("torch", "transformers", "peft", "deepspeed", "accelerate")
# What a model of others runs for an image, before its language model: LLaVA's parts, Idefics' parts.
_TOWERS = ({"vision_tower", "multi_modal_projector"}, {"vision_model", "connector"})
# One of which a forward says that is given more than a text.
_MEDIA = ("pixel", "image", "video", "vision", "visual", "audio", "speech", "sound")
_HEADS = ("head", "score", "classifier")  # named before the model whose output they are called on
EMBEDDINGS = "inputs_embeds"


def wrapper_in(root: Any) -> Any:
    """The module of ``root`` whose own forward calls a tower, of a model that it is around or its own."""
    return next((module for module in root.modules() if calls_a_tower(module) or own_towers(module)), None)


def called_as(wrapper: Any, root: Any) -> list[Any]:
    """The modules in ``root`` whose call is a forward of ``wrapper``.

    PEFT's tuner around a model calls its forward by itself, so that no hook of the model runs.
    """
    return [module for module in root.modules() if module is wrapper or _is_tuner_of(wrapper, module)]


def _is_tuner_of(wrapper: Any, module: Any) -> bool:
    of_peft = str(type(module).__module__).partition(".")[0] == "peft"
    return of_peft and any(child is wrapper for child in module.children())


def own_towers(module: Any) -> list[str]:
    """The children that ``module`` runs for an image, if it is a model in code of others; else none."""
    own = own_classes(type(module))
    if not own or any(path_of(cls) is not None for cls in type(module).__mro__):
        return []
    children, said = dict(module.named_children()), said_in_forward(type(module))
    run = [name for name in said.names if name in children]
    asked = next((parameters_of(cls) for cls in own if "forward" in vars(cls)), ())
    known = next((parts for parts in _TOWERS if parts <= {*run} and {*PIXELS} & {*asked}), None)
    return [name for name in run if name in known] if known else _before_its_language(run, children, said)


def _before_its_language(run: list[str], children: dict[str, Any], said: Said) -> list[str]:
    """Those before the language model of transformers to which the forward hands embeddings."""
    media = any(word in name for name in (*said.names, *said.words) for word in _MEDIA)
    if not media or EMBEDDINGS not in said.words:
        return []
    languages = [name for name in run if _takes_embeddings(children[name])]
    before = run[: run.index(languages[-1])] if languages else []
    towers = [name for name in before if not any(word in name for word in _HEADS)]
    return [name for name in towers if any(True for _ in children[name].parameters())]


def _takes_embeddings(part: Any) -> bool:
    return any(
        any(base.__name__ == "PreTrainedModel" for base in type(inner).__mro__)
        and EMBEDDINGS in signature(type(inner).forward).parameters
        for inner in part.modules()
    )


def calls_a_tower(module: Any) -> bool:
    """Whether the forward that ``module`` has beside any library's names a tower of a model in it."""
    own = own_classes(type(module))
    if not own or any(path_of(cls) is not None for cls in own):
        return False
    names = {*said_in_forward(type(module)).names}
    models = models_in(module)
    return bool(models) and bool(names & MAKE_FEATURES.union(*map(outside, models)))


def models_in(wrapper: Any) -> list[Any]:
    """Those in ``wrapper`` that run a tower in their forward, and those of transformers around them."""
    known = [inner for inner in wrapper.modules() if any(map(path_of, type(inner).__mro__))]
    return [
        inner
        for inner in wrapper.modules()
        if inner in known
        or (
            str(type(inner).__module__).startswith("transformers.")
            and any(m in known for m in inner.children())
        )
    ]


def own_classes(cls: type) -> list[type]:
    """Those of its bases that belong to no library that models and engines come from."""
    return [
        base
        for base in cls.__mro__
        if str(base.__module__).partition(".")[0] not in (*_LIBRARIES, "builtins", "abc", "typing")
    ]


class Said(NamedTuple):
    """What a forward says.

    Attributes:
        names: in the order in which it says them last, for a text is embedded before the towers run.
        words: its parameters, and texts: of arguments by name, too.
    """

    names: dict[str, None]
    words: set[str]


_said: WeakKeyDictionary[type, Said] = WeakKeyDictionary()  # experts of a class are many


def said_in_forward(cls: type) -> Said:
    """What the forward says that ``cls`` has of its own, with the methods of its own that it names."""
    if cls not in _said:
        said = _said[cls] = Said({}, set())
        _read(own_classes(cls), "forward", said, {"forward"})
    return _said[cls]


def _read(own: list[type], method: str, said: Said, seen: set[str]) -> None:
    for code in _codes_of_method(own, method):
        said.words.update(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], _texts(code))
        for name in _names(code):
            said.names.pop(name, None)
            said.names[name] = None
            if name not in seen and any(name in vars(cls) for cls in own):
                seen.add(name)
                _read(own, name, said, seen)


def _codes_of_method(own: list[type], method: str) -> Iterator[CodeType]:
    """Those of its bases too, as far as ``super()`` leads."""
    for code in (_code(vars(cls).get(method)) for cls in own):
        if code is not None:
            yield code
            if "super" not in _names(code):
                break


def _code(method: Any) -> CodeType | None:
    function = method.fget if isinstance(method, property) else method
    try:
        found = inspect.unwrap(function) if callable(function) else None
    except Exception:  # a callable of a script's own, which answers for any name, or leads back to itself
        return None
    return found.__code__ if isinstance(found, FunctionType) else None


def _names(code: CodeType) -> Iterator[str]:
    """In the order of its source, with those of the functions within it."""
    for step in dis.get_instructions(code):
        if isinstance(step.argval, CodeType):
            yield from _names(step.argval)
        elif step.opcode in dis.hasname:
            yield step.argval


def _texts(code: CodeType) -> Iterator[str]:
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _texts(value)
        yield from (
            text for text in (value if isinstance(value, tuple) else (value,)) if isinstance(text, str)
        )
