"""ZeRO-3 hangs when ranks run the vision tower a different number of times.

What the user sees: nothing more, on NCCL, until its own time limit half an hour later; an abort with a
``collective mismatch`` on gloo. Text-only samples beside image samples, different numbers of image
slices.

Why: every module call gathers its parameters, and a gather takes every rank. Once one rank calls a
module another does not, they wait in different gathers.

What is done: nothing in a step but to remember which gather this is. A thread looks now and then; when a
rank has started no gather for a minute while a forward or backward is running, it leaves its last gathers
in the store that started the job. Once every rank has, they are compared. Where they part, the ranks are
deadlocked for certain: the error says which rank gathers what, and what to change, and ends the process,
as NCCL's own watchdog would have. Ranks that merely are slow agree, and nothing happens.

What a model can do about it: call its vision tower on every rank, on a dummy image where a batch has none
(MiniCPM-V, InternVL and ms-swift's templates for Qwen-VL do), and the same number of times on each.

Every DeepSpeed. Upstream: https://github.com/OpenBMB/MiniCPM-V/issues/644,
https://github.com/modelscope/ms-swift/issues/3213, https://github.com/modelscope/ms-swift/issues/9655
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

GATHER = "_PartitionedParameterCoordinator__all_gather_params"
STILL = 60.0  # seconds without a gather before a rank tells the others where it is
KEPT = 4000  # gathers a rank remembers; ranks that part do so within one step
PARTED = (
    "vlmpatch [zero3-uneven-calls]: the ranks wait for each other in different gathers and can never go on. "
    "Gather {number} of this run is {told}. Under ZeRO-3 every rank has to call every module, the same "
    "number of times: a batch without an image must still run the vision tower, on a dummy image whose "
    "result is multiplied by 0, and image slices must be padded to the same number of calls; or sort the "
    "data so that all ranks see images together; or use ZeRO-2. "
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
    watch = Watch(patch)

    def gather(original: Callable[..., Any], self: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        watch.note(params)
        return original(self, params, *args, **kwargs)

    patch.wrap(module.PartitionedParameterCoordinator, GATHER, gather)


class Watch:
    """What this rank has gathered, and a thread that compares it with the others' when all stand still."""

    def __init__(self, patch: Patch) -> None:
        self.patch = patch
        self.number = 0
        self.at = time.monotonic()
        self.last: deque[int] = deque(maxlen=KEPT)
        self.names: dict[int, str] = {}
        self.comparable = True  # no parameter is partitioned over a part of the ranks only
        self.thread: threading.Thread | None = None

    def note(self, params: Any) -> None:
        """This rank is about to gather ``params``."""
        self.number += 1
        self.at = time.monotonic()
        first = min(params, key=_id)
        self.last.append(first.ds_id)
        if first.ds_id not in self.names:
            self.names[first.ds_id] = _name(first)
            self.comparable = self.comparable and _on_every_rank(first)
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, name="vlmpatch-zero3", daemon=True)
            self.thread.start()

    def _run(self) -> None:
        told = 0
        while self.patch.active and self.comparable:
            time.sleep(STILL / 4)
            if time.monotonic() - self.at < STILL:
                continue
            if told != self.number:
                told = self.number
                self._tell()
            if message := self._compare():
                print(message, file=sys.stderr, flush=True)
                time.sleep(STILL / 2)  # so that every rank's own look finds what this one found
                os._exit(1)

    def _tell(self) -> None:
        dist = sys.modules["torch.distributed"]
        known = self.number - len(self.last)
        report = {"from": known, "ids": list(self.last), "names": {i: self.names[i] for i in set(self.last)}}
        _store().set(f"vlmpatch/gathers/{dist.get_rank()}", json.dumps(report))

    def _compare(self) -> str | None:
        dist = sys.modules["torch.distributed"]
        keys = [f"vlmpatch/gathers/{rank}" for rank in range(dist.get_world_size())]
        store = _store()
        if not store.check(keys):
            return None
        return parting([json.loads(store.get(key)) for key in keys])


def parting(reports: Sequence[dict[str, Any]]) -> str | None:
    """Where the ranks' gathers differ, in words; None while one is only ahead of another."""
    start = max(report["from"] for report in reports)
    end = min(report["from"] + len(report["ids"]) for report in reports)
    for number in range(start, end):
        here = [report["ids"][number - report["from"]] for report in reports]
        if len(set(here)) > 1:
            names = [report["names"][str(i)] for report, i in zip(reports, here, strict=True)]
            told = ", ".join(f"{name} on rank {rank}" for rank, name in enumerate(names[:8]))
            return PARTED.format(number=number + 1, told=told)
    return None


def _id(param: Any) -> int:
    number: int = param.ds_id
    return number


def _name(param: Any) -> str:
    from deepspeed.utils.debug import debug_param2name

    name = str(debug_param2name(param))
    return name if name != "unknown" else f"parameter {param.ds_id} of shape {tuple(param.ds_shape)}"


def _on_every_rank(param: Any) -> bool:
    dist = sys.modules["torch.distributed"]
    everyone: int = dist.get_world_size()
    return everyone > 1 and dist.get_world_size(param.ds_process_group) == everyone


def _store() -> Any:
    return sys.modules["torch.distributed"].distributed_c10d._get_default_store()
