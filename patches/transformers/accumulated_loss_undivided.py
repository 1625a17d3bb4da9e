"""Nothing is seen, or a loss that grows with ``gradient_accumulation_steps``, and gradients with it.

What the user sees: the loss of 4 accumulated steps is 4 times that of one, or only the gradient norm is;
under DeepSpeed with a text model, gradients 4 times too small.

Why: from 4.46 on transformers divides the loss by the number of tokens of all accumulated batches, or by the
steps, depending on what the model and ``compute_loss`` take. For months the cases were mixed up: never
divided (4.46.2 to 4.47), the token count kept from the models that take it (4.47.0, 4.48.0), a second
division by DeepSpeed (to 4.48), no division where a batch has no count (to 4.52).

Since transformers 4.46.0, until 4.53.0, whose ``training_step`` asks for both.

The change: around ``training_step`` what goes backward, and what is returned for the log, is scaled to what
upstream's last form of it gives: once divided, by tokens where the loss counts them, by steps elsewhere. A
``compute_loss`` of a script that divides by itself is left alone.

Upstream: https://github.com/huggingface/transformers/issues/37766,
https://github.com/huggingface/transformers/pull/35808, https://github.com/huggingface/transformers/pull/37882
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from vlmpatch.api import Argument, Code, Patch

from .._shared.compute_losses import COUNT, text_of

GIVEN = Argument(2, COUNT)
STEPS = "gradient_accumulation_steps"
_RIGHT = re.compile(  # of 4.53, and what 5.x made of it
    r"not self\.model_accepts_loss_kwargs or num_items_in_batch is None"
    r"|self\.model_accepts_loss_kwargs and num_items_in_batch is not None"
)
_BY_MODEL = re.compile(r"if not self\.model_accepts_loss_kwargs and self\.compute_loss_func is None:\s")
_BY_COUNT = re.compile(r"if num_items_in_batch is None:\s*loss = loss / ")
_MIXED_UP = re.compile(r"if self\.model_accepts_loss_kwargs:\s*loss = self\.compute_loss\(model, inputs\)")


class Form(NamedTuple):
    """How this release's ``training_step`` divides, as its text has it."""

    by_model: bool  # where the model takes no count
    by_count: bool  # where there is no count
    mixed_up: bool  # a model that takes a count is not given it
    multiplied: bool  # the loss is multiplied first, as accelerate divides it
    only_returned: bool  # what is returned is divided, where there is no count, and nothing else
    deepspeed_told: bool  # DeepSpeed is told not to divide


def look(code: Code) -> str | None:
    """``training_step`` must take a count and not ask for it before it divides."""
    function = code.function("Trainer.training_step")
    if function is None or COUNT not in function.parameters:
        return f"Trainer.training_step knows no {COUNT}"
    return "Trainer.training_step divides right" if _RIGHT.search(function.source) else None


def apply(patch: Patch, module: ModuleType) -> None:
    """Scale what goes backward in every ``training_step``."""
    form = read(inspect.getsource(module.Trainer.training_step))
    plain = module.Trainer.compute_loss

    def step(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        count = GIVEN.of(args, kwargs)
        counted = _counted(self, count, plain)
        if self.args.gradient_accumulation_steps == 1 or counted is None:
            return original(self, *args, **kwargs)
        backward, returned = factors(form, self, count, counted)
        with contextlib.ExitStack() as stack:
            if form.mixed_up and counted and self.model_accepts_loss_kwargs:
                given = functools.partial(self.compute_loss, **{COUNT: count})
                stack.enter_context(patch.swapped(self, "compute_loss", given))
            if backward != 1:
                scaled = _scaled(self.accelerator.backward, backward)
                stack.enter_context(patch.swapped(self.accelerator, "backward", scaled))
            return original(self, *args, **kwargs) * returned

    patch.wrap(module.Trainer, "training_step", step)


def read(source: str) -> Form:
    """The form of a ``training_step``, from its text."""
    return Form(
        by_model=bool(_BY_MODEL.search(source)),
        by_count=bool(_BY_COUNT.search(source)),
        mixed_up=bool(_MIXED_UP.search(source)),
        multiplied=f"loss *= self.args.{STEPS}" in source,
        only_returned=f"return loss.detach() / self.args.{STEPS}" in source,
        deepspeed_told="scale_wrt_gas" in source,
    )


def factors(form: Form, trainer: Any, count: Any, counted: bool) -> tuple[float, float]:
    """What the loss must be multiplied by before the backward, and the returned one afterwards.

    Args:
        form: the release's.
        trainer: transformers' Trainer.
        count: the tokens of all accumulated batches, or None.
        counted: whether the loss is divided by them already.
    """
    steps = trainer.args.gradient_accumulation_steps
    wanted = 1.0 if counted else 1 / steps
    own = 1.0
    if form.multiplied:
        own = float(steps)
    elif _divides(form, trainer, count):
        own = 1 / steps
    if getattr(trainer, "is_deepspeed_enabled", False):
        engine = 1.0 if form.deepspeed_told else 1 / steps
    else:
        engine = 1 / trainer.accelerator.gradient_accumulation_steps
    logged = own
    if form.multiplied:
        logged = 1.0
    elif form.only_returned and count is None:
        logged = own / steps
    # The scaling of the backward changes nothing in what is returned: that is another tensor by then.
    return wanted / (own * engine), wanted / logged


def _divides(form: Form, trainer: Any, count: Any) -> bool:
    """Whether ``training_step`` divides by the steps."""
    if form.by_model:
        return not trainer.model_accepts_loss_kwargs and trainer.compute_loss_func is None
    return form.by_count and count is None


def _counted(trainer: Any, count: Any, plain: Callable[..., Any]) -> bool | None:
    """Whether the loss is divided by ``count``; None where ``compute_loss`` divides by steps itself."""
    method = type(trainer).compute_loss
    if method is not plain:
        source = text_of(method)
        if STEPS in source:
            return None
        if source.count(COUNT) < 2 and "**" not in source:
            return False
    if count is None:
        return False
    return bool(trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None)


def _scaled(backward: Callable[..., Any], factor: float) -> Callable[..., Any]:
    def scaled(loss: Any, **kwargs: Any) -> Any:
        return backward(loss * factor, **kwargs)

    return scaled
