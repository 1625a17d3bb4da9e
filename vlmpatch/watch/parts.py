"""Which part of a model a parameter belongs to, by its name, and how many of each part are trained."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

TOWER, AUDIO, PROJECTOR, LANGUAGE, HEAD = (
    *("vision tower", "audio tower", "projector"),
    *("language model", "head"),
)
ORDER = (TOWER, AUDIO, PROJECTOR, LANGUAGE, HEAD)
# A piece of a name, between its dots; the first part counts: a projector often lies inside its tower.
_PIECES = {
    PROJECTOR: re.compile(
        r"merger|projector|connector|resampler|aligner|qformer|modality_projection|img_projection|^mlp1$"
        r"|^embed_(?:vision|audio)$|^vision_proj$|^audio_projection_layer$"
    ),
    TOWER: re.compile(r"visual|vision|^vpm$|^vit$|image_encoder|img_processor|image_tower"),
    AUDIO: re.compile(r"audio|^apm$"),
    HEAD: re.compile(r"^(?:lm_head|embed_out|score|classifier|v_head|value_head)$"),
}
# How PEFT's kinds of adapters name their parameters.
_ADAPTER = re.compile(
    r"(?:^|\.)(?:lora_|hada_|lokr_|ia3_|oft_|boft_|vera_|randlora_|modules_to_save\.|prompt_encoder\.|trainable_tokens)"
)


class Part(NamedTuple):
    """The parameters of one part, by name.

    Attributes:
        trained: those that require a gradient.
        frozen: the others.
    """

    trained: tuple[str, ...]
    frozen: tuple[str, ...]


def part_of(name: str) -> str:
    """The part of a model that a parameter or module of that name belongs to."""
    pieces = name.lower().split(".")
    found = (part for part, pattern in _PIECES.items() if any(map(pattern.search, pieces)))
    return next(found, LANGUAGE)


def is_adapter(name: str) -> bool:
    """Whether a parameter is one that PEFT has added."""
    return _ADAPTER.search(name) is not None


def parts(model: Any) -> dict[str, Part]:
    """Every part that the model has, with its parameters."""
    sorted_: dict[str, tuple[list[str], list[str]]] = {}
    for name, parameter in model.named_parameters():
        trained, frozen = sorted_.setdefault(part_of(name), ([], []))
        (trained if parameter.requires_grad else frozen).append(name)
    return {part: Part(*map(tuple, sorted_[part])) for part in ORDER if part in sorted_}


def counted(found: Mapping[str, Part]) -> str:
    """How many parameters of each part are trained and frozen, in words."""
    said = [f"{name} {len(part.trained)} trained, {len(part.frozen)} frozen" for name, part in found.items()]
    adapters = sum(is_adapter(name) for part in found.values() for name in part.trained)
    return "; ".join([*said, *([f"{adapters} of the trained are adapters'"] if adapters else [])])


def idle_adapters(found: Mapping[str, Part]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each part where an adapter that is trained elsewhere is frozen throughout, and its parameters there."""
    trained = {_adapter(name) for part in found.values() for name in part.trained if is_adapter(name)}
    for name, part in found.items():
        here = {_adapter(parameter) for parameter in part.trained if is_adapter(parameter)}
        frozen = tuple(
            parameter
            for parameter in part.frozen
            if is_adapter(parameter) and _adapter(parameter) in trained - here
        )
        if frozen:
            yield name, frozen


def _adapter(name: str) -> str:
    """What the adapter of a parameter is called: ``default`` of ``….lora_A.default.weight``."""
    return name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]


def named(targets: Any) -> Iterable[tuple[str, str]]:
    """Each part but the language model that a LoRA's targets name, and the target that does.

    Args:
        targets: a list of names, or one pattern, as ``target_modules`` of a ``LoraConfig``.
    """
    if isinstance(targets, str):
        targets = [] if "(?!" in targets else [targets]  # what a pattern excludes is named in it as well
    for target in sorted(map(str, targets or ())):
        for part in (PROJECTOR, TOWER, AUDIO):
            if any(map(_PIECES[part].search, re.findall(r"\w+", target.lower()))):
                yield part, target
                break
