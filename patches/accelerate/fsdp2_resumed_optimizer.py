"""A training resumed under FSDP2 begins with an empty optimizer, or ends because a state is missing.

What the user sees: HF Trainer or accelerate, FSDP2, ``resume_from_checkpoint``. With accelerate 1.7 to 1.12
and ``SHARDED_STATE_DICT`` the first loss is right, and those after it are not what they would have been.
Where a part never got a gradient (a tower in a run without images), later releases end with ``Missing key
in checkpoint state_dict: optimizer.state.….step``, and ``FULL_STATE_DICT`` with ``Missing optimizer state
for parameter``.

Why: shards are read into the state of the new optimizer. Up to 1.12 that is ``optimizer.state_dict()``,
which has none, and what is not asked for is not read. From 1.13 on it is ``get_optimizer_state_dict``,
which makes a state for every parameter, those too that had none when the checkpoint was written.

The change: the state is made before it is read, and asked for where the checkpoint has it. For the rest the
optimizer is handed zeros with a step of zero, which are taken from it again: as in the run that was
stopped, these parameters have no state until they get a gradient. Where the checkpoint has no state that
fits at all, it is read as before, and a warning says so.

Upstream: https://github.com/huggingface/accelerate/issues/3971,
https://github.com/PrimeIntellect-ai/prime-rl/issues/2676
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.optimizer_shards import folder_of, saved_in, whole_in

NAME = "load_fsdp_optimizer"
STATES = "torch.distributed.checkpoint.state_dict"
GET, SET = "get_optimizer_state_dict", "set_optimizer_state_dict"
PLUGIN, OPTIMIZER, MODEL = Argument(0, "fsdp_plugin"), Argument(2, "optimizer"), Argument(3, "model")
FOLDER, NUMBER = Argument(4, "input_dir"), Argument(5, "optimizer_index")
SHARDS, GIVEN_STATE = Argument(7, "use_dcp"), Argument(2, "optim_state_dict")
State = dict[str, Any]


def look(code: Code) -> str | None:
    """It must set the state that it read by name."""
    function = code.function(NAME)
    if function is None:
        raise Unrecognised(f"{code.module} has no {NAME}")
    return None if SET in function else "this release does not set the state of FSDP2 by name"


def apply(patch: Patch, module: ModuleType) -> None:
    """Ask for what the checkpoint has, and hand over the rest as zeros."""

    def load_fsdp_optimizer(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        plugin, optimizer = PLUGIN.of(args, kwargs), OPTIMIZER.of(args, kwargs)
        if getattr(plugin, "fsdp_version", 1) != 2 or optimizer.state:
            return original(*args, **kwargs)
        states = importlib.import_module(STATES)
        bare = getattr(optimizer, "optimizer", optimizer)  # without accelerate's scaler
        made = functools.cache(lambda: getattr(states, GET)(MODEL.of(args, kwargs), bare))
        with contextlib.ExitStack() as stack:
            if "SHARDED" in str(plugin.state_dict_type) and SHARDS.of(args, kwargs, True):
                folder = folder_of(module, FOLDER.of(args, kwargs), NUMBER.of(args, kwargs, 0))
                if not (saved := saved_in(folder)):
                    return original(*args, **kwargs)
                if not (known := whole_in(saved, made()["state"])):
                    patch.warn("lacking", f"the optimizer begins empty: {folder} has no state that fits")
                    bare.state.clear()
                    return original(*args, **kwargs)
                for swap in _asked(patch, states, optimizer, {**made(), "state": known}):
                    stack.enter_context(swap)
            stack.enter_context(_filled(patch, states, made))
            result = original(*args, **kwargs)
        for parameter in [parameter for parameter, state in bare.state.items() if _is_blank(state)]:
            del bare.state[parameter]
        return result

    patch.wrap(module, NAME, load_fsdp_optimizer)


def _asked(
    patch: Patch, states: ModuleType, optimizer: Any, asked: State
) -> Iterator[contextlib.AbstractContextManager[None]]:
    """Within these accelerate asks for ``asked``, by whichever name its release does."""
    named, own = [asked], optimizer.state_dict

    def state_dict(*args: Any, **kwargs: Any) -> Any:
        return named.pop() if named else own(*args, **kwargs)

    yield patch.swapped(optimizer, "state_dict", state_dict)
    yield patch.swapped(states, GET, lambda *args, **kwargs: asked)


def _filled(
    patch: Patch, states: ModuleType, made: Callable[[], State]
) -> contextlib.AbstractContextManager[None]:
    """Within it a state that is set has every parameter of what ``made`` makes.

    Making it takes a step of zeros, as torch does: so it is not made for an optimizer that keeps no state.
    """
    own = getattr(states, SET)

    def set_optimizer_state_dict(*args: Any, **kwargs: Any) -> Any:
        given = GIVEN_STATE.of(args, kwargs)
        if given and given["state"]:  # else another rank has it, or nobody
            every = made()["state"]
            whole = getattr(kwargs.get("options"), "full_state_dict", False)
            blank = {name: _blank(every[name], whole) for name in every.keys() - given["state"].keys()}
            filled = {**given, "state": {**given["state"], **blank}}
            args, kwargs = GIVEN_STATE.replaced(args, kwargs, filled)
        return own(*args, **kwargs)

    return patch.swapped(states, SET, set_optimizer_state_dict)


def _blank(parts: Mapping[str, Any], whole: bool) -> State:
    """The state of a parameter that never got a gradient, were there one; ``whole``: not a rank's share."""
    import torch

    def zeros(part: Any) -> Any:
        if not isinstance(part, torch.Tensor):
            return part
        return torch.zeros(part.shape, dtype=part.dtype) if whole else torch.zeros_like(part)

    return {name: zeros(part) for name, part in parts.items()}


def _is_blank(state: Mapping[str, Any]) -> bool:
    """Whether it is what ``_blank`` makes: a step that was taken is counted."""
    return "step" in state and not float(state["step"])
