"""``Error(s) in loading state_dict for Qwen3VLMoe…``, from ``from_pretrained`` under ZeRO-3, transformers 5.

What the user sees: a Qwen3-VL-MoE that transformers 5 has saved without ZeRO-3 (a first stage under DDP or
FSDP, a merged adapter) is loaded everywhere but under ZeRO-3: a size mismatch of every ``mlp.experts``.
Checkpoints of Molmo2 end there in ``Failed to apply weight conversion``.

Why: what is made of a checkpoint's tensor is told by the shape of the model's parameter. Experts are
transposed where the two differ, fused projections are split into the sizes of their parts. Under ZeRO-3
that shape is ``(0,)``.

Since transformers 5.2 (experts) and 5.20 (fused projections), 5.24.0 included.

The change: while ZeRO-3 loads, the whole shape is asked. Two dimensions that are equal tell nothing, with or
without ZeRO-3 (https://github.com/huggingface/transformers/issues/47031): such a tensor goes the way of the
one before it, and is transposed, as before, where it is the first. What is saved is not changed: under
ZeRO-3 experts are written as on the hub, which other programs rely on.

Upstream: no report of this was found; https://github.com/huggingface/transformers/pull/44037 brought the
comparison.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.zero3_parameters import absent

LOADER, LOADS = "modeling_utils", "_load_state_dict_into_zero3_model"
TRANSPOSE, SPLIT = "Transpose", "Split"
ASKED = {
    TRANSPOSE: 'kwargs["model"].get_parameter(kwargs["full_layer_name"]).shape',
    SPLIT: "model.get_parameter(full_layer_name.replace(target_patterns[0], target)).shape[self.dim]",
}
TENSORS = Argument(0, "input_dict")
SOURCES = Argument(1, "source_patterns")
TARGETS = Argument(2, "target_patterns")
NAME = Argument(3, "full_layer_name")
MODEL = Argument(4, "model")


# Of this thread: whether it loads a ZeRO-3 model, and whether the experts of its checkpoint stay as they are,
# which None says before the first of them.
_load = threading.local()


def look(code: Code) -> str | None:
    """An operation must ask for the shape of the parameter, and ZeRO-3 must load with them."""
    if code.module.endswith(LOADER):
        return None if LOADS in code.names else f"{LOADER} has no {LOADS}"
    found = {name: code.function(f"{name}.convert") for name in ASKED}
    if found[TRANSPOSE] is None:
        raise Unrecognised(f"{code.path} has no {TRANSPOSE}.convert")
    asking = any(function is not None and ASKED[name] in function for name, function in found.items())
    return None if asking else "no operation asks for the shape of a parameter"


def apply(patch: Patch, module: ModuleType) -> None:
    """Tell the operations the shape of the whole parameter while ZeRO-3 loads."""
    if module.__name__.endswith(LOADER):
        patch.wrap(module, LOADS, loaded)
        return
    patch.wrap(getattr(module, TRANSPOSE), "convert", transposed)
    if hasattr(module, SPLIT):
        patch.wrap(getattr(module, SPLIT), "convert", split)


def loaded(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Around what loads a state dict into a ZeRO-3 model."""
    before = _loading(), getattr(_load, "kept", None)
    _load.running, _load.kept = True, None
    try:
        return original(*args, **kwargs)
    finally:
        _load.running, _load.kept = before


def _loading() -> bool:
    return getattr(_load, "running", False)


def transposed(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around ``Transpose.convert``: what has the shape of the whole parameter stays as it is."""
    if _loading() and getattr(self, "check_dims", False):
        parameter = MODEL.of(args, kwargs).get_parameter(NAME.of(args, kwargs))
        tensor = _first(TENSORS.of(args, kwargs))
        if absent(parameter) and _kept(tensor.shape, parameter.ds_shape, (self.dim0, self.dim1)):
            patterns = [each.of(args, kwargs) for each in (TENSORS, SOURCES, TARGETS)]
            return {self.get_target_pattern(*patterns): tensor}
    return original(self, *args, **kwargs)


def _kept(shape: Any, whole: Any, dimensions: tuple[int, int]) -> bool:
    """Whether a tensor of this checkpoint stays as it is; one checkpoint has its experts one way only."""
    first, second = (shape[dimension] for dimension in dimensions)
    says = shape == whole if first != second else _load.kept
    kept = bool(says) and _load.kept is not False
    _load.kept = kept
    return kept


def split(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around ``Split.convert``: the sizes are those of the whole parameters."""
    tensors, targets = TENSORS.of(args, kwargs), TARGETS.of(args, kwargs)
    if not _loading() or len(tensors) != 1:
        return original(self, *args, **kwargs)
    model, name = MODEL.of(args, kwargs), NAME.of(args, kwargs)
    parts = [model.get_parameter(name.replace(targets[0], target)) for target in targets]
    if not any(map(absent, parts)):
        return original(self, *args, **kwargs)
    sizes = [(part.ds_shape if absent(part) else part.shape)[self.dim] for part in parts]
    chunks = _first(tensors).split(sizes, dim=self.dim)
    return {target: chunk.contiguous() for target, chunk in zip(targets, chunks, strict=True)}


def _first(tensors: dict[str, Any]) -> Any:
    found = next(iter(tensors.values()))
    return found[0] if isinstance(found, list) else found
