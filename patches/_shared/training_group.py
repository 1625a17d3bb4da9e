"""Which ranks train a model together, and what they wait for each other for.

That a job has several processes says nothing: each may train a model of its own (an ensemble, local SGD), or
average gradients by hand. What says that they train together is a wrapper of this very model, found by what
it leaves on the model's parameters, or that its forward runs: DistributedDataParallel, FSDP, a DeepSpeed
engine. A model without one is its own rank's business.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from types import FrameType
from typing import Any

from .zero3_parameters import gather_group

ZERO3, FSDP1, FSDP2 = "ds_id", "_fsdp_flattened", "device_mesh"  # what they leave on a parameter
# Whose Trainers' steps of an evaluation every rank runs; in one of a script's own it may be one rank alone.
LIBRARIES = ("transformers.", "trl.", "swift.", "llamafactory.")


def waiting_groups(modules: Iterable[Any]) -> list[Any]:
    """Those of ``gathering_groups`` whose ranks wait in a forward that begins now.

    What is whole already is not gathered again: where the caller has gathered all of it, or ZeRO-3 keeps it
    so (it is small, or soon used again), one rank may run it by itself, unless the ranks are known to run
    this forward together: one whose calls are not those of the last step lets go of what it kept, and waits
    for the others. Gathers take every rank, so that all of a group see the same. FSDP1 may keep weights
    whole, and reduces gradients of them all the same.
    """
    modules = list(modules)
    parameters = [p for module in modules for p in module.parameters() if hasattr(p, "ds_status")]
    if parameters and all(p.ds_status.name == "AVAILABLE" for p in parameters):
        return gathering_groups(modules) if _run_together(parameters) else []
    if not sys.modules["torch"].is_grad_enabled() and _kept_whole(modules):
        return []
    return gathering_groups(modules)


def _run_together(parameters: list[Any]) -> bool:
    """Whether every rank runs the forward that we are in.

    It is so where the DeepSpeed engine that has ``parameters`` trains (``engine.module`` may be called past
    it) or has evaluated before (nothing else keeps what is too large to be kept for good), where a backward
    computes again, and in a step of HF Trainer's evaluation as a library has it. None of them leaves a mark
    of it, so that the stack is asked.
    """
    torch = sys.modules["torch"]
    if torch._C._current_graph_task_id() != -1:
        return True
    by_engine = torch.is_grad_enabled() or not all(parameter.ds_persist for parameter in parameters)
    evaluating = False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name, module = frame.f_code.co_name, frame.f_globals.get("__name__")
        if by_engine and name == "forward" and module == "deepspeed.runtime.engine":
            engine = frame.f_locals["self"]
            if any(parameter is parameters[0] for parameter in engine.module.parameters()):
                return True
        evaluating = evaluating or (name == "prediction_step" and str(module).startswith(LIBRARIES))
        if evaluating and name in ("evaluation_loop", "prediction_loop") and module == "transformers.trainer":
            return True
        frame = frame.f_back
    return False


def gathering_groups(modules: Iterable[Any]) -> list[Any]:
    """The process groups whose ranks gather the weights of ``modules`` together; empty where none do.

    ZeRO-3 gathers in the forward of each module, unless its hooks were taken off (TRL generates with the
    whole model gathered, and then each rank goes its own way). FSDP gathers in the forward of each module
    it was told to wrap; what belongs to the root only is gathered before any of it. A parameter that is
    split for tensor parallelism alone is gathered by nobody.
    """
    modules = list(modules)
    for module in modules:
        flattened = split = False
        for parameter in module.parameters():
            if hasattr(parameter, "ds_process_group"):
                return _of_several(_zero3_groups(modules)) if _deepspeed_hooks(module) else []
            split = split or hasattr(parameter, "device_mesh")
            flattened = flattened or hasattr(parameter, "_fsdp_flattened")
        if split and (groups := _fully_shard_groups(module)):
            return _of_several(groups)
        if flattened and (group := _fsdp_group(module)) is not None:
            return _of_several([group])
    return []


def sharding(modules: Iterable[Any]) -> str:
    """By which of them a part of ``modules`` is split over ranks, whatever of it is whole now; or ``""``.

    A parameter that is split for tensor parallelism looks like FSDP2's. One of FSDP2's root is whole, and
    bears no mark, in the forward of the model.
    """
    parameters = [p for module in modules for p in module.parameters()]
    marks = (mark for p in parameters for mark in (ZERO3, FSDP1, FSDP2) if hasattr(p, mark))
    return next(marks, FSDP2 if _fully_shard_groups_of(parameters) else "")


def agreeing_groups(modules: Iterable[Any], *, training: bool) -> list[Any]:
    """The process groups whose ranks have to agree what of ``modules`` runs in a forward that begins now.

    They wait for each other in it; or, where it trains, in its backward, for what FSDP2 keeps in its root:
    that is whole in the forward that we are in and gathered by nobody, but what one rank has a gradient of
    the others must have as well.
    """
    modules = list(modules)
    if (groups := waiting_groups(modules)) or not training:
        return groups
    return _fully_shard_groups_of([p for module in modules for p in module.parameters() if p.requires_grad])


def reduced_together(modules: Iterable[Any]) -> bool:
    """Whether other ranks wait for gradients of ``modules``, in whose forward we are, to reduce them."""
    modules = list(modules)
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    if not parameters:
        return False
    if any(hasattr(p, "ds_process_group") for p in parameters):
        return bool(gathering_groups(modules))
    by_zero = next((p._dp_group for p in parameters if hasattr(p, "_dp_group")), None)
    if by_zero is not None:
        return bool(_of_several([by_zero]))
    return running_ddp(parameters) is not None or bool(_fully_shard_groups_of(parameters))


def running_ddp(parameters: Iterable[Any]) -> Any:
    """The DistributedDataParallel in whose forward we are and that reduces one of ``parameters``, or None.

    In a window that does not reduce (``no_sync``) nobody waits, unless its graph was said to be static.
    """
    ddp = active_ddp()
    if ddp is None or not (ddp.require_backward_grad_sync or ddp.static_graph):
        return None
    asked = {id(parameter) for parameter in parameters}
    inside = any(id(parameter) in asked for parameter in ddp.module.parameters())
    return ddp if inside and _of_several([ddp.process_group]) else None


_latest: list[weakref.ref[Any]] = []  # the DDP that ran last: what its backward computes again is its own


def active_ddp() -> Any:
    """The DistributedDataParallel in whose forward, or in whose recomputation, we are, or None."""
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    if parallel is None:
        return None
    ddp = getattr(parallel.DistributedDataParallel, "_active_ddp_module", None)
    if ddp is not None:
        _latest[:] = [weakref.ref(ddp)]
        return ddp
    in_backward = sys.modules["torch"]._C._current_graph_task_id() != -1
    return _latest[0]() if in_backward and _latest else None


def _fully_shard_groups_of(parameters: Iterable[Any]) -> list[Any]:
    """Of the module that ``fully_shard`` was told to wrap and that has one of ``parameters``."""
    states = sys.modules.get("torch.distributed._composable_state")
    asked = {id(parameter) for parameter in parameters}
    for module in list(getattr(states, "_module_state_mapping", ())):
        if hasattr(module, "_get_fsdp_state") and any(id(p) in asked for p in module.parameters()):
            return _of_several(_fully_shard_groups(module))
    return []


def _of_several(groups: Iterable[Any]) -> list[Any]:
    dist = sys.modules["torch.distributed"]
    return [group for group in groups if dist.get_world_size(group) > 1]


def _zero3_groups(modules: Iterable[Any]) -> list[Any]:
    partitioned = (p for module in modules for p in module.parameters() if hasattr(p, "ds_process_group"))
    first = next(partitioned)
    if getattr(first, "ds_zero_param_process_group", None) is None:  # no hpZ
        return [first.ds_process_group]
    return list(dict.fromkeys([gather_group(first), *map(gather_group, partitioned)]))


def _deepspeed_hooks(module: Any) -> bool:
    hooks = module._forward_pre_hooks.values()
    return any(getattr(hook, "__module__", "").startswith("deepspeed.") for hook in hooks)


def _fsdp_group(module: Any) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    wrapped = (inner for inner in module.modules() if isinstance(inner, FullyShardedDataParallel))
    return next((inner.process_group for inner in wrapped), None)


def _kept_whole(modules: Iterable[Any]) -> bool:
    """Whether FSDP1 wraps parts of ``modules`` and gathers none: NO_SHARD, and SHARD_GRAD_OP once it ran."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return False
    wrapper = fsdp.FullyShardedDataParallel
    units = [unit for module in modules for unit in module.modules() if isinstance(unit, wrapper)]
    return bool(units) and not any(_gathers(unit._handle) for unit in units)


def _gathers(handle: Any) -> bool:
    """Whether the forward of an FSDP1 unit with this handle gathers; one without weights has none."""
    if handle is None or not handle.uses_sharded_strategy:
        return False
    begun = hasattr(handle.flat_param, "_full_param_padded")
    return not begun or bool(handle.needs_unshard())


def _fully_shard_groups(module: Any) -> list[Any]:
    """Those that gather a unit in ``module``, and where a backward follows those that reduce it, too.

    Replicas (HSDP) wait for each other in a backward alone: in an evaluation each may run as many batches as
    it has.
    """
    trains = sys.modules["torch"].is_grad_enabled()
    units = (inner._get_fsdp_state() for inner in module.modules() if hasattr(inner, "_get_fsdp_state"))
    for unit in units:
        # One group of parameters a unit until torch 2.14, then a list of them.
        single = getattr(unit, "_fsdp_param_group", None)
        for group in getattr(unit, "_fsdp_param_groups", None) or [single]:
            if group is not None:
                gathers = getattr(group.mesh_info, "shard_process_group", None)
                whole = group.mesh_info.mesh.get_all_groups() if trains else [gathers]
                return [each for each in whole if each is not None]
    return []
