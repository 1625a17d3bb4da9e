"""``LOAD REPORT … MISSING``: under ZeRO-3 transformers 5 leaves weights as they were drawn.

What the user sees: a report that calls most weights of a model ``MISSING``, newly initialized, though the
checkpoint has them (Qwen3.5's ``model.language_model``; mixtures of experts on 5.0), and a loss as of a new
model. Without ZeRO-3 the same checkpoint loads.

Why: names of a checkpoint are converted to those of the model. Some names need no conversion and get one:
that of a text model renames the same text model in a vision-language model. Where a converted name is none of
the model's, transformers takes the name as it was; its loader for ZeRO-3 drops the weight. That of 5.0 also
drops each weight that goes as it is into a model of which others are merged.

Since transformers 5.0 (mixtures of experts, until 5.1), 5.4 (Qwen3.5, until 5.5) and DeepSeek-V4, 5.24.0
included. In 5.1 a mixture of experts ends in ``Failed to apply weight conversion``: this does not change it.

The change: what was dropped so is loaded, under the names that transformers' other loader would give it. Left
alone: whatever else conversions say, and what they leave out whose name is none of the model's.

Upstream: https://github.com/huggingface/transformers/issues/45313,
https://github.com/deepspeedai/DeepSpeed/issues/7848
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

NAME = "_apply_weight_conversions_to_state_dict"
PARAMETERS = ("model", "state_dict", "weight_mapping")
MODEL, STATE, MAPPING = (Argument(at, name) for at, name in enumerate(PARAMETERS))
RENAMES, KEEPS = "rename_source_key(", "original_key in model_state_dict"


def look(code: Code) -> str | None:
    """It must convert names, and say nothing of those that it should have left as they are."""
    convert = code.function(NAME)
    if convert is None:
        return "no names are converted under ZeRO-3"
    if KEEPS in convert:
        return "names that need no conversion are kept"
    if RENAMES not in convert or convert.parameters != PARAMETERS:
        raise Unrecognised(f"{NAME} converts as in no known release")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Add to what was converted what was dropped."""

    def convert(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        known = unmerged(MODEL.of(args, kwargs), STATE.of(args, kwargs), MAPPING.of(args, kwargs))
        found = original(*args, **kwargs)
        if not isinstance(found, dict):
            return _in_parts(found, known)
        found.update(_dropped(known, found.keys()))
        return found

    patch.wrap(module, NAME, convert)


def unmerged(model: Any, read: Mapping[str, Any], mapping: Sequence[Any]) -> dict[str, Any]:
    """What of ``read`` goes as it is into ``model``, by its name there."""
    from transformers import core_model_loading

    named = core_model_loading.rename_source_key
    renamings = [each for each in mapping if isinstance(each, core_model_loading.WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, core_model_loading.WeightConverter)]
    owned, prefix = model.state_dict(), model.base_model_prefix
    known = {}
    for key, tensor in read.items():
        name, converter = named(key, renamings, converters, prefix, owned)
        if name not in owned and key in owned:
            name, converter = named(key, [], [], prefix, owned)
        if converter is None and name in owned:
            known[name] = tensor
    return known


def _in_parts(found: Iterator[Mapping[str, Any]], known: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """As the newest transformers hands it on, one conversion after another."""
    names: set[str] = set()
    for part in found:
        names |= part.keys()
        yield part
    if left := _dropped(known, names):
        yield left


def _dropped(known: Mapping[str, Any], found: Set[str]) -> dict[str, Any]:
    return {name: tensor for name, tensor in known.items() if name not in found}
