"""Nothing; a training with ``batch_rebalance`` resumed within a later epoch trains rows twice.

What the user sees: nothing, with ``train_sampling_strategy="batch_rebalance"`` or a batch sampler of one's
own that is told epochs, on two ranks or more, and ``resume_from_checkpoint`` from within the second epoch or
a later one: some of that epoch's rows are trained twice and others not at all. From within the first epoch,
and from between two, it goes on as it should.

Why: accelerate tells a loader's epoch to its sampler, but not to a batch sampler behind the wrapper that
shares batches out. The Trainer reaches behind that wrapper itself. In the resumed epoch one more lies around
it, which skips what was trained, so that the epoch's number gets to the first wrapper and no further.

Since transformers 5.17, which brought ``batch_rebalance``.

The change: the batch sampler is told the epoch before the first batches are skipped. In every other epoch
the Trainer tells it, and nothing is done.

Upstream: https://github.com/huggingface/transformers/pull/47340
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

NAME, TOLD, BEHIND = "_run_epoch", "set_epoch", "batch_sampler"
EPOCH, LOADER = Argument(1, "epoch"), Argument(2, "train_dataloader")
BEGUN, SKIPPED = Argument(9, "epochs_trained"), Argument(10, "steps_trained_in_current_epoch")
PARAMETERS = {1: EPOCH, 2: LOADER, 9: BEGUN, 10: SKIPPED}
REACHES = f'underlying_sampler = getattr(shard_wrapper, "{BEHIND}", None)'


def look(code: Code) -> str | None:
    """The Trainer must reach behind one wrapper, of a loader that may have had its first batches skipped."""
    loop = code.function(f"Trainer.{NAME}")
    if loop is None:
        raise Unrecognised(f"{code.module} has no {NAME}")
    if REACHES not in loop:
        return "a batch sampler is told no epoch"
    said = loop.parameters[1:]
    if any(len(said) <= place or said[place] != known.name for place, known in PARAMETERS.items()):
        raise Unrecognised(f"{code.module} runs an epoch as no known release does")
    if loop.source.index(REACHES) < loop.source.index("skip_first_batches("):
        return "a batch sampler is told the epoch before batches are skipped"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Tell it before."""

    def run(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        epoch = EPOCH.of(args, kwargs)
        if epoch == BEGUN.of(args, kwargs) and SKIPPED.of(args, kwargs) and not self.args.ignore_data_skip:
            shared = getattr(LOADER.of(args, kwargs), BEHIND, None)
            behind: Any = getattr(shared, BEHIND, None)
            if hasattr(behind, TOLD):
                behind.set_epoch(epoch)
        return original(self, *args, **kwargs)

    patch.wrap(module.Trainer, NAME, run)
