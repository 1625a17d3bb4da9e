"""A training resumed under FSDP1 from shards begins with an empty optimizer, and nothing says so.

What the user sees: HF Trainer or accelerate, FSDP1, ``fsdp_state_dict_type: SHARDED_STATE_DICT``,
``resume_from_checkpoint``: the first loss is right, and those after it are not what they would have been.

Why: ``torch.distributed.checkpoint`` reads what it is asked for. accelerate 1.7 to 1.12 asks for
``optimizer.state_dict()``, later releases for ``FSDP.optim_state_dict``; a new optimizer has no state yet,
so both are empty, and nothing is read. Up to 1.6 what is in the checkpoint said what to read.

Since accelerate 1.7; 1.15 included.

The change: where the optimizer is new, its state is made first, and of that is asked what the checkpoint
has; weights, options and hooks notice nothing of that. A parameter that never had a gradient has no state
there, and none afterwards. Where the checkpoint has none that fits at all, or where the optimizer takes no
step without a closure, it is read as before, and a warning says so.

Upstream: https://github.com/huggingface/accelerate/issues/3971, the same under FSDP2
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised, assign

from .._shared.optimizer_shards import folder_of, saved_in, whole_in

NAME, READ_BY_CHECKPOINT = "load_fsdp_optimizer", "load_sharded_optimizer_state_dict"
PLUGIN, OPTIMIZER, MODEL = Argument(0, "fsdp_plugin"), Argument(2, "optimizer"), Argument(3, "model")
FOLDER, NUMBER, SHARDS = Argument(4, "input_dir"), Argument(5, "optimizer_index"), Argument(7, "use_dcp")
HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")  # of one optimizer
State = dict[str, Any]


def look(code: Code) -> str | None:
    """It must read into the state that a new optimizer has."""
    function = code.function(NAME)
    if function is None:
        raise Unrecognised(f"{code.module} has no {NAME}")
    if READ_BY_CHECKPOINT in function:
        return "this release reads what the checkpoint has"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Let a new optimizer have the state that is to be read."""

    def load_fsdp_optimizer(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        plugin, optimizer = PLUGIN.of(args, kwargs), OPTIMIZER.of(args, kwargs)
        sharded = "SHARDED" in str(getattr(plugin, "state_dict_type", "")) and SHARDS.of(args, kwargs, True)
        if getattr(plugin, "fsdp_version", 1) != 1 or not sharded or optimizer.state:
            return original(*args, **kwargs)
        folder = folder_of(module, FOLDER.of(args, kwargs), NUMBER.of(args, kwargs, 0))
        if not (saved := saved_in(folder)):
            return original(*args, **kwargs)
        bare = getattr(optimizer, "optimizer", optimizer)  # without accelerate's scaler
        if not _begun(patch, bare):
            patch.warn("asks for more", f"{type(bare).__name__} begins empty: no step without a closure")
            return original(*args, **kwargs)
        asked = _asked(plugin, MODEL.of(args, kwargs), optimizer)
        known = whole_in(saved, asked["state"])
        if not known:
            patch.warn("lacking", f"the optimizer begins empty: {folder} has no state that fits")
            bare.state.clear()
            return original(*args, **kwargs)
        with _named(patch, optimizer, {**asked, "state": known}):
            return original(*args, **kwargs)

    patch.wrap(module, NAME, load_fsdp_optimizer)


def _begun(patch: Patch, optimizer: Any) -> bool:
    """Make the state of a new optimizer by a step of zeros, as torch does, and leave all else as it is.

    Returns:
        Whether it took such a step: one that wants a closure takes none.
    """
    from torch.distributed.checkpoint.state_dict import _init_optim_state

    params = [param for group in optimizer.param_groups for param in group["params"]]
    weights = [param.detach().to("cpu", copy=True) for param in params]  # there may be no room on a GPU
    gradients = [param.grad for param in params]
    groups = [dict(group) for group in optimizer.param_groups]
    hooks = [name for name in HOOKS if hasattr(optimizer, name)]
    try:
        with contextlib.ExitStack() as block:
            for name in hooks:
                block.enter_context(patch.swapped(optimizer, name, type(getattr(optimizer, name))()))
            _init_optim_state(optimizer)
    except Exception:
        optimizer.state.clear()
        return False
    finally:
        for param, weight, gradient in zip(params, weights, gradients, strict=True):
            param.detach().copy_(weight)
            assign(param, "grad", gradient)
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            group.update(before)
    return True


def _asked(plugin: Any, model: Any, optimizer: Any) -> State:
    """The state as accelerate writes it into a checkpoint."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    settings = plugin.state_dict_type, plugin.state_dict_config, plugin.optim_state_dict_config
    with FSDP.state_dict_type(model, *settings):
        return dict(FSDP.optim_state_dict(model, optimizer))


@contextlib.contextmanager
def _named(patch: Patch, optimizer: Any, asked: State) -> Any:
    """Within it accelerate asks for ``asked``, by whichever name its release does."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    named, own = [asked], optimizer.state_dict

    def state_dict(*args: Any, **kwargs: Any) -> Any:
        return named.pop() if named else own(*args, **kwargs)

    asks = staticmethod(lambda *args, **kwargs: asked)
    with patch.swapped(optimizer, "state_dict", state_dict), patch.swapped(FSDP, "optim_state_dict", asks):
        yield
