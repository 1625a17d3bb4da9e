"""Nothing is seen: the routers' loss of a model of experts grows with accumulation, and with the ranks.

What the user sees: no error. With ``output_router_logits`` (LLaMA-Factory's ``moe_aux_loss_coef``, axolotl's
and TRL's ``router_aux_loss_coef``) the loss that balances the experts has ``gradient_accumulation_steps``
times the weight that it was given, times the number of ranks where tokens are averaged across devices.

Why: from 4.46 on the Trainer hands the model the number of tokens of all accumulated batches, of all ranks,
and divides by nothing else; where tokens are averaged across devices it multiplies by the ranks. The model
divides its cross entropy by that number and adds the routers' loss, a mean of one batch, whole.

Since transformers 4.46.0, to this day (5.24.0).

The change: after ``compute_loss`` what the routers' loss is too much is taken off, so that a step has its
mean over batches and ranks, as TRL's own loss has it. A model whose ``forward`` reads the number
itself is left alone, as is a ``compute_loss`` of a script that divides by steps or weighs the routers' loss.

Upstream: https://github.com/huggingface/transformers/issues/48690
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.compute_losses import COUNT, METHOD, divides_itself, own_layers_of, text_of

AUX = "aux_loss"
MULTIPLIED = "loss *= "  # by the ranks, where tokens are averaged across devices
WITHOUT_TP = "get_tp_size"  # tensor parallel ranks have the same tokens
MODEL, OUTPUTS, GIVEN = Argument(0, "model"), Argument(2, "return_outputs"), Argument(3, COUNT)
_ADDED = re.compile(r"loss (?:\+=|= loss \+) self\.([\w.]+) \* aux_loss\b")
_WEIGHED = re.compile(r"aux.*\s[-+*/]=?\s|\s[-+*/]=?\s.*aux")  # on a line; TRL's only notes it


def look(code: Code) -> str | None:
    """``compute_loss`` must take the number, multiply by the ranks, and know of no other loss."""
    function = code.function(f"Trainer.{METHOD}")
    if function is None:
        raise Unrecognised(f"{code.path} has no {METHOD}")
    if COUNT not in function.parameters:
        return f"{METHOD} is given no {COUNT}"
    if AUX in function:
        return f"{METHOD} weighs {AUX} itself"
    if MULTIPLIED not in function:
        raise Unrecognised(f"{METHOD} in {code.path} is not as any known release has it")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Take off what is too much, after every ``compute_loss``."""
    trainer = module.Trainer
    dense = WITHOUT_TP in text_of(vars(trainer)[METHOD])

    def compute_loss(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        model = MODEL.of(args, kwargs)
        much = 0.0
        if GIVEN.of(args, kwargs) is not None and is_the_models(self, trainer):
            much = ranks_of(self, dense) - 1 / steps_of(self, model.training)
        weight = weight_of(bare(self.accelerator, model)) if much else None
        if not weight:
            return original(self, *args, **kwargs)
        given = OUTPUTS.of(args, kwargs)
        args, kwargs = OUTPUTS.replaced(args, kwargs, True)
        loss, outputs = original(self, *args, **kwargs)
        aux = outputs.get(AUX) if isinstance(outputs, dict) else None
        if aux is not None:
            loss = loss - much * weight * aux.to(loss.device)
        return (loss, outputs) if given else loss

    patch.wrap(trainer, METHOD, compute_loss)


def is_the_models(trainer: Any, owner: type) -> bool:
    """Whether the loss is the model's own, which the Trainer does not divide any more."""
    if not trainer.model_accepts_loss_kwargs or getattr(trainer, "loss_is_scaled_for_ga", None) is False:
        return False
    if trainer.label_smoother is not None or trainer.compute_loss_func is not None or trainer.args.n_gpu > 1:
        return False
    spread = getattr(trainer.accelerator, "parallelism_config", None)
    if spread is not None and getattr(spread, "sp_enabled", False):
        return False
    own = [*own_layers_of(type(trainer), owner)]
    return not divides_itself(type(trainer), owner) and not any(
        _WEIGHED.search(text_of(each)) for each in own
    )


def ranks_of(trainer: Any, dense: bool) -> int:
    """What the loss is multiplied by, which the mean over ranks takes back of the cross entropy alone."""
    if not getattr(trainer.args, "average_tokens_across_devices", False):
        return 1
    ranks: int = trainer.accelerator.num_processes
    return ranks // trainer.get_tp_size() if dense else ranks


def steps_of(trainer: Any, training: bool) -> int:
    """Of the window that this batch is of."""
    if not training:
        return 1
    whole: int = trainer.args.gradient_accumulation_steps
    return getattr(trainer, "current_gradient_accumulation_steps", None) or whole


def bare(accelerator: Any, model: Any) -> Any:
    """The model without what wraps it for an engine, for a compiler, or for adapters."""
    model = accelerator.unwrap_model(model)
    model = getattr(model, "_orig_mod", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def weight_of(model: Any) -> float | None:
    """What ``model`` multiplies its routers' loss by, as it adds it to its own; None where it adds none."""
    forward = inspect.unwrap(model.forward)
    code = getattr(getattr(forward, "__func__", forward), "__code__", None)
    path = _path(code) if isinstance(code, CodeType) else None
    return operator.attrgetter(path)(model) if path else None


@functools.lru_cache
def _path(code: CodeType) -> str | None:
    """Under which the weight is found, from the text of a ``forward``, which may hold a model itself."""
    try:
        source = inspect.getsource(code)
    except (OSError, TypeError):
        return None
    found = _ADDED.search(source)
    return found[1] if found and COUNT not in source else None
