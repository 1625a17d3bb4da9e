"""Nothing; a training resumed within a later epoch goes on in the order of the first (transformers 4).

What the user sees: nothing. With ``resume_from_checkpoint``, from a checkpoint within the second epoch or a
later one, HF Trainer (and TRL) trains some of the epoch's rows twice and others not at all, in any engine and
with one process. From within the first epoch, and from between two, it goes on as it should.

Why: an epoch's order is drawn from a seed and the number of the epoch. The Trainer tells the loader the
number, and then has ``skip_first_batches`` make another of it, without the batches that were trained. That
one begins to count at 0, and tells so the sampler that both share.

Since accelerate 1.7, whose loader finds the sampler behind one that skips; until 1.15, which hands the number
on. transformers 5 tells it to the new loader itself.

The change: the loader without the first batches is told the epoch of the one that it was made of. Left alone:
a loader that nobody told an epoch and that has ended none, as in a script's own loop that does not.

Upstream: https://github.com/huggingface/accelerate/pull/4071
"""

from __future__ import annotations

from types import ModuleType

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.epochs import COUNT, LOADER, NAME, TOLD, skipping


def look(code: Code) -> str | None:
    """A loader must count its epochs from 0, whatever it was made of."""
    skip, loop = code.function(NAME), code.function("DataLoaderShard.__iter__")
    if skip is None or loop is None or skip.parameters[:1] != (LOADER.name,):
        raise Unrecognised(f"{code.module} skips batches as no known release does")
    if f"dataloader.{COUNT}" in skip:
        return "a loader that skips batches is told the epoch"
    if f"self.{TOLD}(self.{COUNT})" not in loop:
        return "a loader does not count its epochs"
    told = code.function(f"DataLoaderShard.{TOLD}")
    if told is not None and f"self.batch_sampler.batch_sampler.sampler.{TOLD}(" in told:
        return None
    return "a loader that skips batches leaves the sampler's epoch alone"


def apply(patch: Patch, module: ModuleType) -> None:
    """Tell the new loader what the old one was told."""
    patch.wrap(module, NAME, skipping)
