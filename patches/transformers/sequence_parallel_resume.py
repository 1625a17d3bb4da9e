"""Sequence parallelism: a training that is resumed dies, or trains again on the rows it had already seen.

What the user sees: with accelerate's ``sp_size``, ``trainer.train(resume_from_checkpoint=…)`` from within an
epoch ends with ``'UlyssesSPDataLoaderAdapter' object has no attribute 'dataset'``. From the end of an epoch
it goes on without a word, in the order of the first epoch.

Why: HF Trainer asks the loader of batches for two things when it resumes. ``skip_first_batches`` takes it
apart, by its ``dataset`` and its sampler; ``set_epoch`` says which order the epoch has, where the loader has
such a method. DeepSpeed's ``UlyssesSPDataLoaderAdapter``, around the loader, has neither.

Since transformers 5.0, whose Trainer has sequence parallelism; measured on 5.23.0 with DeepSpeed 0.19.8.

The change: batches are skipped in the loader within, each of which the adapter makes into as many as the
group has ranks, and what is left over after that, in the adapter. It is given a ``set_epoch`` that hands the
number on before the first pass over the loader; from then on accelerate's loader counts by itself.

Upstream: https://github.com/deepspeedai/DeepSpeed/pull/7472, which brought the adapter
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.sequence_parallel import is_adapter

LOADERS, ADAPTER = "accelerate.data_loader", "UlyssesSPDataLoaderAdapter"
SKIP, SET_EPOCH = "skip_first_batches", "set_epoch"
LOADER, SKIPPED = Argument(0, "dataloader"), Argument(1, "num_batches")
MADE_OF = ("dl", "sp_rank", "sp_group", "sp_world_size", "device")


def look(code: Code) -> str | None:
    """Batches must be skipped of a loader that the adapter does not let one take apart."""
    if code.module == LOADERS:
        skip = code.function(SKIP)
        if skip is None or skip.parameters[:2] != (LOADER.name, SKIPPED.name):
            raise Unrecognised(f"{SKIP} in {code.module} is not as any known release has it")
        return "batches of the adapter are skipped already" if "sp_world_size" in skip else None
    if code.function(f"{ADAPTER}.{SET_EPOCH}") is not None:
        return "the adapter is told which epoch it is"
    made = code.function(f"{ADAPTER}.__init__")
    if made is None or made.parameters[1:6] != MADE_OF:
        raise Unrecognised(f"{ADAPTER} in {code.module} is not as any known release has it")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Let the adapter be told the epoch, and batches of it be skipped."""
    if module.__name__ == LOADERS:
        patch.wrap(module, SKIP, skipping)
    else:
        patch.replace(getattr(module, ADAPTER), SET_EPOCH, set_epoch)


def set_epoch(self: Any, epoch: int) -> None:
    """Hand on which epoch comes first; one that the loader has begun is another's."""
    begun = not inspect.isgenerator(self.iter) or inspect.getgeneratorstate(self.iter) != inspect.GEN_CREATED
    if not begun and hasattr(self.dl, SET_EPOCH):
        self.dl.set_epoch(epoch)


def skipping(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Around accelerate's ``skip_first_batches``; it keeps an adapter that has a ``dataset``."""
    adapter = LOADER.of(args, kwargs)
    if not is_adapter(adapter) or hasattr(adapter, "dataset"):
        return original(*args, **kwargs)
    whole, rest = divmod(SKIPPED.of(args, kwargs, 0), adapter.sp_world_size)
    args, kwargs = LOADER.replaced(args, kwargs, adapter.dl)
    args, kwargs = SKIPPED.replaced(args, kwargs, whole)
    left = {name: getattr(adapter, name) for name in MADE_OF} | {"dl": original(*args, **kwargs)}
    return Remaining(type(adapter)(**left), rest)


class Remaining:
    """An adapter's batches without the first ``rest``, which are taken when the first is asked for.

    Not before: the epoch is told after batches were skipped.
    """

    def __init__(self, adapter: Any, rest: int) -> None:
        self.adapter, self.rest = adapter, rest

    def __len__(self) -> int:
        return len(self.adapter) - self.rest

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self.adapter, self.rest, None)

    def set_epoch(self, epoch: int) -> None:
        """Hand on which epoch it is."""
        self.adapter.set_epoch(epoch)
