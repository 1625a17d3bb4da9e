"""On ``PYTHONPATH`` of every launch: what real frameworks need on gloo and not on a GPU.

A rank ends its process group before it ends. Scripts that do not (Trainer's users, ms-swift, OpenBMB's
``finetune.py``) are now and then aborted by gloo's threads after all their work is done.

What DeepSpeed compiles for a minute on a machine without an accelerator, collectives over shared memory for
inference, is left out: no training calls them.

With ``VLMPATCH_LAB_WAITING=1`` every collective waits before it returns. ZeRO-3 waits for the last of
several asynchronous gathers. One CUDA stream makes that enough; over gloo it is a data race in DeepSpeed
that has nothing to do with what is tested here.

With ``VLMPATCH_LAB_BACKWARD=thread`` a backward, and what it recomputes, runs in a thread of its own, as on
a GPU: on a CPU torch runs it in the thread that asks for it, whose stack and thread-locals it would see.
"""

from __future__ import annotations

import atexit
import gc
import importlib.abc
import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any


class _AfterExec(importlib.abc.Loader):
    """Of a module that ``act`` changes once it is there."""

    def __init__(self, loader: Any, act: Callable[[ModuleType], None]) -> None:
        self.loader, self.act = loader, act

    def create_module(self, spec: Any) -> ModuleType | None:
        made: ModuleType | None = self.loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        self.act(module)


def _without_an_accelerator(module: ModuleType) -> None:
    vars(module)["build_shm_op"] = lambda: None
    accelerator = sys.modules["deepspeed.accelerator"].get_accelerator()
    if accelerator.communication_backend_name() == "ccl":  # DeepSpeed 0.12 would compile one over Intel's
        accelerator._communication_backend_name = "gloo"
    if os.environ.get("VLMPATCH_LAB_WAITING") == "1":
        from vlmpatch_lab.collectives import wait_for_every_collective

        wait_for_every_collective()


def _in_a_thread(module: ModuleType) -> None:
    module.Variable._execution_engine = _Engine(module.Variable._execution_engine)


class _Engine:
    """Autograd's, whose backwards run in a thread of their own."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.mine = engine, threading.local()
        self.threads = ThreadPoolExecutor(1, "backward", lambda: setattr(self.mine, "own", True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        # A reentrant checkpoint's within another; one that is traced, whose modes torch takes along on a GPU.
        if hasattr(self.mine, "own") or sys.modules["torch"]._C._len_torch_dispatch_stack():
            return self.engine.run_backward(*args, **kwargs)
        return self.threads.submit(self.engine.run_backward, *args, **kwargs).result()


ACTS = {"deepspeed.comm.torch": _without_an_accelerator}
if os.environ.get("VLMPATCH_LAB_BACKWARD") == "thread":
    ACTS["torch.autograd.variable"] = _in_a_thread


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.asking = False

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in ACTS or self.asking:
            return None
        self.asking = True
        spec = importlib.util.find_spec(name)
        self.asking = False
        assert spec is not None
        spec.loader = _AfterExec(spec.loader, ACTS[name])
        return spec


def _end_process_group() -> None:
    distributed: Any = sys.modules.get("torch.distributed")
    # After an exception a collective may be pending, and gloo would wait for the other rank here.
    failed = hasattr(sys, "last_value")
    if distributed is not None and not failed and distributed.is_initialized():
        gc.collect()  # a model under DDP, in a trainer's cycles, would keep the group's threads running
        distributed.destroy_process_group()


atexit.register(_end_process_group)
sys.meta_path.insert(0, _Finder())
