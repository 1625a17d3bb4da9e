"""``size mismatch … the shape in current model is torch.Size([0])`` under ZeRO-3.

What the user sees: that error where a model builds and loads its own vision tower in its constructor
(VideoChat-Flash, DeepSeek-VL, timm's towers, SigLIP in remote code), where a script calls
``load_state_dict`` on a part of a model, or ``from_pretrained`` inside a ``zero.Init`` of its own.

Why: every rank holds a part of each weight and an empty tensor in its place, and ``load_state_dict``
copies into that.

What is done: a module's partitioned parameters are gathered while it loads, and partitioned again with
rank 0's values. The ranks first see, without a collective, that all of them load, and the same names: one
that loads alone gets an error at once. What a checkpoint holds as an empty tensor itself, as DeepSpeed's
own do, is left to the caller, and so are parameters that the caller has gathered.

Every DeepSpeed. Upstream: https://github.com/OpenGVLab/VideoChat-Flash/issues/26,
https://github.com/modelscope/ms-swift/issues/1058, https://github.com/om-ai-lab/VLM-R1/issues/85,
https://github.com/deepspeedai/DeepSpeed/issues/7136
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.rendezvous import attend, rendezvous
from .._shared.zero3_parameters import absent, any_absent, whole

STATE, PREFIX, METADATA = Argument(0, "state_dict"), Argument(1, "prefix"), Argument(2, "local_metadata")
REMEDY = (
    "Load on every rank, without `if rank == 0`, or before the model is partitioned "
    "(outside of zero.Init and before deepspeed.initialize)."
)


def look(code: Code) -> str | None:
    """Parameters must say where they are, and there must be something to gather them with."""
    for name in ("ZeroParamStatus", "GatheredParameters", "Init"):
        if name not in code.names:
            raise Unrecognised(f"{code.module} has no {name}")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Gather what is loaded."""
    torch_module = importlib.import_module("torch.nn").Module
    loading: list[Any] = []  # the outermost load_state_dict, whose ranks have met

    def made(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        attend(patch)

    def load_all(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if loading or not _meet(patch, self, STATE.of(args, kwargs)):
            return original(self, *args, **kwargs)
        loading.append(self)
        try:
            return original(self, *args, **kwargs)
        finally:
            loading.clear()

    def load_one(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        prefix = PREFIX.of(args, kwargs, "")
        empty = to_fill(self._parameters, STATE.of(args, kwargs, {}), prefix)
        if not empty:
            return original(self, *args, **kwargs)
        if not loading:
            rendezvous(patch, empty.values(), f"loading {type(self).__name__}", prefix, REMEDY)
        # Copied, not assigned: a parameter put in its place would not be partitioned.
        copied = {**METADATA.of(args, kwargs, {}), "assign_to_params_buffers": False}
        args, kwargs = METADATA.replaced(args, kwargs, copied)
        with whole(empty.values(), changed=True):
            return original(self, *args, **kwargs)

    patch.wrap(module.Init, "__init__", made)
    patch.wrap(torch_module, "load_state_dict", load_all)
    patch.wrap(torch_module, "_load_from_state_dict", load_one)


def to_fill(parameters: Mapping[str, Any], state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The partitioned ones of ``parameters`` for which ``state`` has values."""
    return {
        name: parameter
        for name, parameter in parameters.items()
        if absent(parameter) and _has_values(state.get(prefix + name))
    }


def _has_values(value: Any) -> bool:
    return value is not None and getattr(value, "numel", lambda: 0)() > 0


def _meet(patch: Patch, module: Any, state: Any) -> bool:
    """Whether parameters will be gathered; every rank then loads the same names."""
    if not isinstance(state, Mapping) or not any_absent(module):
        return False
    names = sorted(to_fill(dict(module.named_parameters()), state, ""))
    if not names:
        return False
    told = (
        f"{len(names)} parameters from {names[0]} on, {hashlib.sha256(repr(names).encode()).hexdigest()[:8]}"
    )
    rendezvous(patch, module.parameters(), f"load_state_dict of {type(module).__name__}", told, REMEDY)
    return True
