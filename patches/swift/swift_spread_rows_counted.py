"""ms-swift's sequence parallelism: ``eval_loss`` is a few per cent off, or infinite.

What the user sees: ``eval_loss`` of the same model and rows is another with ``sequence_parallel_size`` than
without: 1 to 2 % higher where answers reach over more than one rank, and infinite or far off with
``average_tokens_across_devices`` false. The best checkpoint is chosen by it. Training is right.

Why: the Trainer counts the tokens of a batch for the evaluation, too, once the batch is prepared. ms-swift
has spread the row over the ranks by then and moved its labels, so a rank counts its own part, and since
transformers 5 without its first token, which in labels that nobody moved is no target. The loss is of all.

Since ms-swift 4.2.0 with transformers 4.57.0, to this day. Before that it was ms-swift that counted a part.

The change: labels that ms-swift has spread are counted whole, over the ranks that share the row, and over all
where tokens are averaged across devices.

Upstream: no report was found; https://github.com/modelscope/ms-swift/pull/9152 is about the count of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.by_identity import ByIdentity

TRAINER, PREPARE, LOSS = "Seq2SeqTrainer", "_prepare_inputs", "compute_loss"
COUNT = "_get_num_items_in_batch"
SPREADS = "sequence_parallel.prepare_inputs(inputs)"
IS_THE_ROWS = "loss /= self.template.sequence_parallel_size"  # in an evaluation: each rank has the row's loss
BATCHES = Argument(0, "batch_samples")
LABELS, IGNORED = "labels", -100

_spread = ByIdentity()  # labels of which this rank has a part


def look(code: Code) -> str | None:
    """ms-swift must spread labels as it prepares a batch, and make a row's loss of all parts."""
    prepare, loss = (code.function(f"{TRAINER}.{name}") for name in (PREPARE, LOSS))
    if prepare is None or loss is None:
        raise Unrecognised(f"{code.path} has no {TRAINER} as any known release does")
    if SPREADS not in prepare:
        return "this release spreads no rows as it prepares a batch"
    return None if IS_THE_ROWS in loss else "this release divides an evaluation's loss in another way"


def apply(patch: Patch, module: ModuleType) -> None:
    """Know spread labels, and count them whole."""
    ranks = module.sequence_parallel

    def prepare(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        spread = self.template.sequence_parallel_size > 1
        inputs = original(self, *args, **kwargs)
        if spread and inputs.get(LABELS) is not None:
            _spread.put(inputs[LABELS], True)
        return inputs

    def count(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        everywhere = self.args.average_tokens_across_devices
        counted, batches = original(self, *args, **kwargs), BATCHES.of(args, kwargs)
        labels = batches[0].get(LABELS) if len(batches) == 1 else None
        if counted is None or labels is None or not _spread.get(labels):
            return counted
        return whole(labels, (None,) if everywhere else (ranks.sp_group, ranks.rp_group))

    patch.wrap(module.Seq2SeqTrainer, PREPARE, prepare)
    patch.wrap(module.Seq2SeqTrainer, COUNT, count)


def whole(labels: Any, groups: Sequence[Any]) -> Any:
    """How many tokens are to be learned on all ranks of ``groups``; the first may be all there are."""
    import torch.distributed as dist

    counted = (labels != IGNORED).sum()
    for group in (groups[0], *filter(None, groups[1:])):
        dist.all_reduce(counted, group=group)
    return counted
