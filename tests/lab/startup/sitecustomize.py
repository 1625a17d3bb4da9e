"""On ``PYTHONPATH`` of every launch: what real frameworks need on gloo and not on a GPU.

A rank ends its process group before it ends. Scripts that do not (Trainer's users, ms-swift, OpenBMB's
``finetune.py``) are now and then aborted by gloo's threads after all their work is done.

What DeepSpeed compiles for a minute on a machine without an accelerator, collectives over shared memory for
inference, is left out: no training calls them.

With ``VLMPATCH_LAB_WAITING=1`` every collective waits before it returns. ZeRO-3 waits for the last of
several asynchronous gathers. One CUDA stream makes that enough; over gloo it is a data race in DeepSpeed
that has nothing to do with what is tested here.
"""

from __future__ import annotations

import atexit
import gc
import importlib.abc
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any


class _AfterExec(importlib.abc.Loader):
    """Of ``deepspeed.comm.torch``."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: Any) -> ModuleType | None:
        made: ModuleType | None = self.loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        vars(module)["build_shm_op"] = lambda: None
        accelerator = sys.modules["deepspeed.accelerator"].get_accelerator()
        if accelerator.communication_backend_name() == "ccl":  # DeepSpeed 0.12 would compile one over Intel's
            accelerator._communication_backend_name = "gloo"
        if os.environ.get("VLMPATCH_LAB_WAITING") == "1":
            from vlmpatch_lab.collectives import wait_for_every_collective

            wait_for_every_collective()


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "deepspeed.comm.torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        spec.loader = _AfterExec(spec.loader)
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
