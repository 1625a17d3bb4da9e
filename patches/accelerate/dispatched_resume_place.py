"""Nothing; a resumed training whose first rank hands out the batches trains rows again.

What the user sees: nothing, with ``dispatch_batches=True`` and a dataset of known length, on two ranks or
more. A resumed training skips too few of the batches that were trained: with two ranks half of them, with
eight an eighth. The rest are trained again. In transformers 5 a training that is resumed within a later epoch
also goes on in the order of the first.

Why: ``skip_first_batches`` is told how many batches a rank had. A loader that hands batches out takes as many
of its own for one that it yields as there are ranks, and the number of its own is what is skipped. Told an
epoch, it looks for the sampler where it lies in a loader that skips nothing.

Since accelerate 0.16. Over a stream the loader counts what it yields, which is right, and with
``split_batches=True`` the numbers are the same. Under tensor parallelism one batch is taken for all ranks,
and such a loader is left alone.

The change: a loader of that kind is asked to skip as many times more as there are ranks, and hands an epoch
on to the sampler behind what skips, as the loader of a rank does.

Upstream: https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/data_loader.py
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.epochs import LOADER, NAME, TOLD, skipping

BATCHES, EPOCH = Argument(1, "num_batches"), Argument(0, "epoch")
ONE = "submesh_tp"  # of a loader that takes one batch a step for all ranks
SKIPS = "SkipBatchSampler(batch_sampler, skip_batches=num_batches)"
STREAMS = "isinstance(dataset, IterableDataset)"


def look(code: Code) -> str | None:
    """What is skipped must be counted in the loader's own batches, of which it takes one a rank."""
    skip, fetch = code.function(NAME), code.function("DataLoaderDispatcher._fetch_batches")
    if skip is None or fetch is None or SKIPS not in skip or STREAMS not in skip:
        if skip is not None and "num_processes" in skip:
            return "batches are skipped for every rank"
        raise Unrecognised(f"{code.module} skips batches as no known release does")
    if "for _ in range(self.state.num_processes):" not in fetch:
        raise Unrecognised(f"{code.module} hands out batches as no known release does")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Skip what all ranks had, and hand on the epoch."""

    def skip(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        loader, batches = LOADER.of(args, kwargs), BATCHES.of(args, kwargs)
        if not isinstance(loader, module.DataLoaderDispatcher):
            return original(*args, **kwargs)
        if isinstance(loader.dataset, module.IterableDataset) or getattr(loader, ONE, None):
            return original(*args, **kwargs)
        if batches and not loader.split_batches:
            args, kwargs = BATCHES.replaced(args, kwargs, batches * module.PartialState().num_processes)
        return skipping(original, *args, **kwargs)

    def told(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        skips, epoch = getattr(self, "batch_sampler", None), EPOCH.of(args, kwargs)
        found = original(self, *args, **kwargs)
        if epoch and isinstance(skips, module.SkipBatchSampler):
            sampler: Any = getattr(skips.batch_sampler, "sampler", None)
            if hasattr(sampler, TOLD):
                sampler.set_epoch(epoch)
        return found

    patch.wrap(module, NAME, skip)
    patch.wrap(module.DataLoaderDispatcher, TOLD, told)
