"""ms-swift's embeddings and rerankers: loss and gradients grow with accumulation, or ``eval_loss`` shrinks.

What the user sees: no error. With Qwen2.5-VL, Qwen3-VL, GLM-4V and others that do not take the number of
tokens, the loss of ``--task_type embedding`` or ``reranker`` and its gradients are
``gradient_accumulation_steps`` times too large. With those that do, ``eval_loss`` is as many times too small
on transformers 4.57 and later.

Why: the Trainer does not divide where a loss of one's own is given. ms-swift does so in its place where
labels were counted and the model takes the number, as if that made a difference to a loss of its own; and it
does so in an evaluation as well, for which the Trainer counts labels since 4.57.

Since ms-swift 3.0, to this day (4.6.0).

The change: a loss of ms-swift's own is divided in training, whatever the model takes, and no loss is in an
evaluation. Left alone in training: a plugin's loss that is handed the number of labels and divides by it.

Upstream: no report was found; https://github.com/modelscope/ms-swift/pull/10084 is about short windows.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch

from .._shared.compute_losses import COUNT, METHOD, STEPS, divides_by_count, text_of

TRAINERS = ("Trainer", "RerankerTrainer")
CURRENT = f"current_{STEPS}"
DIVIDES = f"if {COUNT} is not None and self.model_accepts_loss_kwargs:"
MODEL, OUTPUTS, GIVEN = Argument(0, "model"), Argument(2, "return_outputs"), Argument(3, COUNT)


def look(code: Code) -> str | None:
    """A ``compute_loss`` must divide where the model takes the number."""
    every = (code.function(f"{name}.{METHOD}") for name in TRAINERS)
    found = any(DIVIDES in function for function in every if function is not None)
    return None if found else f"no {METHOD} divides by what the model takes"


def apply(patch: Patch, module: ModuleType) -> None:
    """Divide in training, whatever the model takes, and in an evaluation nothing."""
    for cls in (getattr(module, name, None) for name in TRAINERS):
        if (
            cls is not None
            and cls.__module__ == module.__name__
            and DIVIDES in text_of(vars(cls).get(METHOD))
        ):
            patch.wrap(cls, METHOD, _dividing(cls))


def _dividing(cls: type) -> Callable[..., Any]:
    """What is put around ``compute_loss`` of ``cls``, each of which divides once."""
    of_the_window = CURRENT in text_of(vars(cls)[METHOD])
    always = cls.__name__ == TRAINERS[0]  # the other one leaves to this one what is not its own loss

    def compute_loss(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        own_loss = getattr(self, "compute_loss_func", None)
        own = own_loss is not None
        training = MODEL.of(args, kwargs).training
        divides = GIVEN.of(args, kwargs) is not None and self.model_accepts_loss_kwargs
        steps = self.args.gradient_accumulation_steps
        if of_the_window:
            steps = getattr(self, CURRENT, steps)
        handed = not always and GIVEN.of(args, kwargs) is not None  # to its own loss
        result = original(self, *args, **kwargs)
        wrong = (own and not divides) if training else (divides and (own or always))
        if training and wrong and handed and divides_by_count(own_loss):
            return result
        if steps == 1 or not wrong:
            return result
        loss, *outputs = result if OUTPUTS.of(args, kwargs) else (result,)
        loss = loss / steps if training else loss * steps
        return (loss, *outputs) if outputs else loss

    return compute_loss
