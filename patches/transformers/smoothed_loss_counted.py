"""Nothing is seen: with ``label_smoothing_factor`` gradients grow with accumulation, and with the ranks.

What the user sees: no error. With label smoothing the loss is ``gradient_accumulation_steps`` times too
large, times the number of ranks where tokens are averaged across devices; gradients with it. Clipping, SGD
and the log show it; Adam hides most.

Why: from 4.46 on the Trainer hands the number of tokens of all accumulated batches, of all ranks, to what
computes the loss, and divides by nothing else. What smooths labels was not told it, and divides by the tokens
of its own batch. In ms-swift's sequence parallelism these are those of its part of a row.

Since transformers 4.46.0, until 5.15.0; in ms-swift's own ``compute_loss``, to this day.

The change: in a ``compute_loss`` that was given the number, the smoothed loss is divided by it, as upstream
does since, and under sequence parallelism every rank's part counts as what it is of a row. A loss of one
batch alone is left as it is, as is a ``compute_loss`` of a script that divides by steps itself.

Upstream: https://github.com/huggingface/transformers/issues/46731,
https://github.com/huggingface/transformers/pull/47261
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.by_identity import ByIdentity
from .._shared.compute_losses import COUNT, METHOD, divides_itself, text_of

TRAINER, SMOOTHER, SWIFT = "Trainer", "label_smoother", "Seq2SeqTrainer"
HANDS_ON = f"self.{SMOOTHER}(outputs, labels, {COUNT}"
OF_THE_ROW = "reduce_outputs"  # older releases of ms-swift make a row's loss of its parts' afterwards
MODEL, GIVEN = Argument(0, "model"), Argument(3, COUNT)  # of ``compute_loss``
LABELS, SHIFT, TAKEN = Argument(1, "labels"), Argument(2, "shift_labels"), Argument(3, COUNT)

_counts = ByIdentity()  # of a smoother, while a loss is computed: by what it is to divide


def look(code: Code) -> str | None:
    """``compute_loss`` must take the number, smooth labels, and not hand it on."""
    name = TRAINER if code.module.startswith("transformers.") else SWIFT
    function = code.function(f"{name}.{METHOD}")
    if function is None:
        raise Unrecognised(f"{code.path} has no {name}.{METHOD}")
    if COUNT not in function.parameters:
        return f"{METHOD} is given no {COUNT}"
    if f"self.{SMOOTHER}(outputs, labels" not in function:
        return "this Trainer smooths no labels by itself"
    return f"{METHOD} hands it on" if HANDS_ON in function else None


def apply(patch: Patch, module: ModuleType) -> None:
    """Tell the smoother what to divide by."""
    upstream = module.__name__.startswith("transformers.")
    trainer = module.Trainer if upstream else module.Seq2SeqTrainer
    home = module if upstream else sys.modules["transformers.trainer"]
    patch.wrap(home.LabelSmoother, "__call__", smooth)
    patch.wrap(trainer, METHOD, _computing(trainer))


def smooth(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around a smoother."""
    count = _counts.get(self)
    if count is None or TAKEN.of(args, kwargs) is not None:
        return original(self, *args, **kwargs)
    labels = LABELS.of(args, kwargs)
    learned = (labels[..., 1:] if SHIFT.of(args, kwargs) else labels) != self.ignore_index
    return divided(original(self, *args, **kwargs), learned.sum(), count)


def _computing(owner: type) -> Callable[..., Any]:
    """What is put around ``compute_loss`` of ``owner``."""
    reduces = OF_THE_ROW in text_of(vars(owner)[METHOD])

    def compute_loss(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        smoother, count = getattr(self, SMOOTHER, None), GIVEN.of(args, kwargs)
        if smoother is None or count is None or not self.model_accepts_loss_kwargs:
            return original(self, *args, **kwargs)
        parts = getattr(getattr(self, "template", None), "sequence_parallel_size", 1)
        several = parts > 1 or is_of_several(self.args, MODEL.of(args, kwargs).training)
        if not several or (parts > 1 and reduces) or divides_itself(type(self), owner):
            return original(self, *args, **kwargs)
        before = _counts.get(smoother)
        _counts.put(smoother, count / parts)  # ranks are averaged, but a row is the sum of its parts
        try:
            return original(self, *args, **kwargs)
        finally:
            _counts.put(smoother, before)

    return compute_loss


def is_of_several(args: Any, training: bool) -> bool:
    """Whether the number is of more than one batch; of one alone the mean is right as it is."""
    accumulated = training and args.gradient_accumulation_steps > 1
    return accumulated or (getattr(args, "average_tokens_across_devices", False) and args.world_size > 1)


def divided(loss: Any, learned: Any, count: Any) -> Any:
    """A mean over ``learned`` tokens as their sum over ``count``; of none it is nothing, not NaN."""
    import torch

    whole = count.to(loss.device) if torch.is_tensor(count) else count
    return (loss * (learned.to(loss.device) / whole)).where(learned.to(loss.device) > 0, 0.0)
