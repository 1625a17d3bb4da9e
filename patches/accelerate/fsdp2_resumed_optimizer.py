"""A resumed training under FSDP2 begins with an empty optimizer, and nothing says so.

What the user sees: HF Trainer or accelerate, FSDP2, ``resume_from_checkpoint``: the first loss is right, and
those after it are not what they would have been.

Why: the state of an optimizer that was saved in shards is read into ``optimizer.state_dict()``. A new
optimizer has no state, so there is no place to read it into, and ``torch.distributed.checkpoint`` reads what
is asked for: nothing.

Since FSDP2 came to accelerate with 1.6; a release after 1.12 asks for the state by
``get_optimizer_state_dict``, which makes it.

The change: so does this. Where the checkpoint lacks the state of a parameter, which then never had a
gradient, the state is left empty as before, and a warning says so.

Upstream: https://github.com/huggingface/accelerate/issues/3971
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

NAME, ASKED = "load_fsdp_optimizer", "get_optimizer_state_dict"
PLUGIN, OPTIMIZER, MODEL = Argument(0, "fsdp_plugin"), Argument(2, "optimizer"), Argument(3, "model")
FOLDER, NUMBER = Argument(4, "input_dir"), Argument(5, "optimizer_index")


def look(code: Code) -> str | None:
    """It must read into the state that a new optimizer has."""
    function = code.function(NAME)
    if function is None:
        raise Unrecognised(f"{code.module} has no {NAME}")
    if ASKED in function:
        return "this release makes the state before it reads it"
    return None if "fsdp_version" in function else "this release has no FSDP2"


def apply(patch: Patch, module: ModuleType) -> None:
    """Let the optimizer name its state when it is first asked."""

    def load_fsdp_optimizer(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        plugin, optimizer = PLUGIN.of(args, kwargs), OPTIMIZER.of(args, kwargs)
        sharded = "SHARDED" in str(getattr(plugin, "state_dict_type", ""))
        if getattr(plugin, "fsdp_version", 1) != 2 or not sharded or optimizer.state:
            return original(*args, **kwargs)
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

        state = get_optimizer_state_dict(
            MODEL.of(args, kwargs), optimizer, options=module._prepare_sd_options(plugin)
        )
        folder = _folder(module, FOLDER.of(args, kwargs), NUMBER.of(args, kwargs, 0))
        if lacking := _lacking(state, folder):
            patch.warn("lacking", f"the optimizer begins empty: {folder} has no state for {lacking}")
            return original(*args, **kwargs)
        named, own = [state], optimizer.state_dict

        def state_dict(*args: Any, **kwargs: Any) -> Any:
            return named.pop() if named else own(*args, **kwargs)

        with patch.swapped(optimizer, "state_dict", state_dict):
            return original(*args, **kwargs)

    patch.wrap(module, NAME, load_fsdp_optimizer)


def _folder(module: ModuleType, given: Any, number: int) -> str:
    """Where accelerate has put the shards."""
    name = module.OPTIMIZER_NAME
    return str(given) if name in str(given) else os.path.join(given, f"{name}_{number}")


def _lacking(state: Mapping[str, Any], folder: str) -> str | None:
    """A parameter of whose state the checkpoint in ``folder`` lacks a part."""
    from torch.distributed.checkpoint import FileSystemReader

    saved = FileSystemReader(folder).read_metadata().state_dict_metadata
    return next(
        (
            name
            for name, parts in state["state"].items()
            if any(f"optimizer.state.{name}.{part}" not in saved for part in parts)
        ),
        None,
    )
