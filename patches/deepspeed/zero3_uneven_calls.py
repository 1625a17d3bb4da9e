"""ZeRO-3 hangs when ranks run the vision tower a different number of times.

What the user sees: nothing more, on NCCL, until its own time limit half an hour later; an abort with a
``collective mismatch`` on gloo. Text-only samples beside image samples, different numbers of image
slices.

Why: every module call gathers its parameters, and a gather takes every rank. Once one rank calls a
module another does not, they wait in different gathers.

What is done: nothing in a step but to remember which gather this is. A thread looks now and then; when
every rank of a group has started no gather for a minute, they are compared over the store that started
the job, without a collective. Where they part, the ranks are deadlocked for certain: the error says which
module ran how often on which rank and what to change, and ends the process, as NCCL's own watchdog would
have. It does so only when every rank has said, at another look, that it still stands where it stood. A
rank that is late, stops at a breakpoint, writes a checkpoint for an hour, or belongs to a run before, is
waited for.

Every DeepSpeed. Upstream: https://github.com/OpenBMB/MiniCPM-V/issues/644,
https://github.com/modelscope/ms-swift/issues/3213, https://github.com/modelscope/ms-swift/issues/9655
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.deadlock import RankMonitor
from .._shared.distributed import group_name, job_store, run_prefix
from .._shared.zero3_parameters import gather_group

GATHER = "_PartitionedParameterCoordinator__all_gather_params"
PARAMS = Argument(0, "params")
STILL = 60.0  # seconds without a gather before a rank tells the others where it is
PARTED = (
    "vlmpatch [zero3-uneven-calls]: the ranks wait for each other in different gathers and can never go on. "
    "{told}. Under ZeRO-3 every rank has to call every module, the same number of times. For the models "
    "vlmpatch knows, batches-without-images and minicpmv-slice-groups see to that (python -m vlmpatch doctor "
    "says whether they are needed and active here). In another model, and where a script or a wrapper calls "
    "get_image_features by itself for the batches that have images, run the module equally often on every "
    "rank: where a batch has nothing for it, on a dummy input whose result is multiplied by 0. "
    "More: python -m vlmpatch explain zero3-uneven-calls"
)


def look(code: Code) -> str | None:
    """Every gather must pass through one method."""
    function = code.function("PartitionedParameterCoordinator.__all_gather_params")
    if function is None or function.parameters[:2] != ("self", "params"):
        raise Unrecognised("PartitionedParameterCoordinator has no __all_gather_params(self, params)")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Remember gathers, and watch."""
    watch = Watch(patch, module.ZeroParamStatus.NOT_AVAILABLE)

    def born(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> None:
        watch.known.add(self)
        original(self, *args, **kwargs)

    def gather(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        watch.note(self, PARAMS.of(args, kwargs))
        return original(self, *args, **kwargs)

    patch.wrap(module.PartitionedParameterCoordinator, "__init__", born)
    patch.wrap(module.PartitionedParameterCoordinator, GATHER, gather)


class Watch:
    """What this rank has gathered in each process group, and a thread that looks at it."""

    def __init__(self, patch: Patch, not_available: Any) -> None:
        self.patch = patch
        self.not_available = not_available
        self.known: WeakSet[Any] = WeakSet()  # coordinators of which every gather was seen
        self.monitors: WeakKeyDictionary[Any, RankMonitor | None] = WeakKeyDictionary()  # by process group
        self.pauses = patch.pauses
        self.thread: threading.Thread | None = None

    def note(self, coordinator: Any, params: Any) -> None:
        """``coordinator`` is about to gather those of ``params`` that are not there."""
        absent = [param for param in params if param.ds_status is self.not_available]
        if not absent:
            return
        if getattr(absent[0], "ds_zero_param_process_group", None) is None:
            self._note(coordinator, absent, absent[0].ds_process_group)
            return
        # hpZ. As DeepSpeed does: first what a node has a second copy of, which takes the node alone.
        for group in dict.fromkeys(map(gather_group, sorted(absent, key=_without_copy))):
            self._note(coordinator, [param for param in absent if gather_group(param) is group], group)

    def _note(self, coordinator: Any, params: list[Any], group: Any) -> None:
        monitor: RankMonitor | None = self._monitor(group)
        if monitor is None:
            return
        first = min(params, key=_id)
        monitor.note(first.ds_id, sum(param.ds_numel for param in params))
        if first.ds_id not in monitor.names:
            monitor.names[first.ds_id] = _name(first)
        if coordinator not in self.known:
            monitor.whole = False
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, name="vlmpatch-zero3", daemon=True)
            self.thread.start()

    def _monitor(self, group: Any) -> RankMonitor | None:
        if group not in self.monitors:
            self.monitors[group] = _new_monitor(group)
        return self.monitors[group]

    def _run(self) -> None:
        while self.patch.active:
            time.sleep(STILL / 4)
            for group, monitor in list(self.monitors.items()):
                if monitor is not None:
                    self._look(group, monitor)
        self.thread = None

    def _look(self, group: Any, monitor: RankMonitor) -> None:
        """Nothing that goes wrong here may show: the group may be destroyed, the store be gone."""
        monitor.whole = monitor.whole and self.pauses == self.patch.pauses
        try:
            sys.modules["torch.distributed"].get_rank(group)
            kind, words = monitor.look(time.monotonic())
        except Exception:
            self.monitors[group] = None
            return
        if kind == "warn":
            self.patch.warn(words, words)
        elif kind == "end":
            self._end(monitor, words)

    def _end(self, monitor: RankMonitor, words: str) -> None:
        """The others' next look tells them as well; a rank that has moved meanwhile lives on."""
        number = monitor.last[-1].number
        time.sleep(STILL / 4)
        if self.patch.active and monitor.last[-1].number == number:
            print(words, file=sys.stderr, flush=True)
            os._exit(1)


def _new_monitor(group: Any) -> RankMonitor | None:
    """What this rank does in ``group``; None where it is alone in it."""
    dist = sys.modules["torch.distributed"]
    ranks = dist.get_process_group_ranks(group)
    if len(ranks) == 1:
        return None
    # The ranks alone do not tell groups apart: two engines may have two groups of the same ones. With them,
    # a name that torch gave twice (to groups of which one is gone) still is of these ranks.
    here = hashlib.sha256(repr([group_name(group), ranks]).encode()).hexdigest()[:12]
    prefix = f"{run_prefix()}/gathers/{here}"
    return RankMonitor(
        job_store(), prefix, ranks, dist.get_rank(group), STILL, lambda told: PARTED.format(told=told)
    )


def _id(param: Any) -> int:
    number: int = param.ds_id
    return number


def _without_copy(param: Any) -> bool:
    return gather_group(param) is param.ds_process_group


def _name(param: Any) -> str:
    from deepspeed.utils.debug import debug_param2name

    name = str(debug_param2name(param))
    return name if name != "unknown" else f"parameter {param.ds_id} of shape {tuple(param.ds_shape)}"
