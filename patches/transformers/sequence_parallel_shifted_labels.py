"""Sequence parallelism: some models are trained, silently, to predict the token after the next one.

What the user sees: no error. With accelerate's ``sp_size`` the loss of a model that shifts its labels itself
is high, and its gradients are another task's: 177 % off for a small Qwen2-Audio, 222 % for Granite Speech.

Why: DeepSpeed's data adapter hands out labels that are already shifted by one, as ``shift_labels``. HF
Trainer passes them as ``labels`` too, since most models hand both to ``loss_function``, which then shifts
nothing. A model whose forward has the older lines, ``labels[..., 1:]``, does not know ``shift_labels`` and
shifts them once more; so does one that calls ``loss_function`` and keeps ``shift_labels`` to itself, as
Qwen3-VL and Gemma 3 did.

Since transformers 5, which takes the loss from the model; measured on 5.23.0 with DeepSpeed 0.19.8.

The change: a model's first loss is compared with both readings of its own logits. Where it is the loss of
labels that were shifted twice, the loss is computed from the logits and ``shift_labels``, here and from then
on. A model whose loss is any other one, or that returns no logits, is left alone.

Upstream: https://github.com/huggingface/transformers/issues/48491
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from vlmpatch.api import Argument, Code, Patch, Unrecognised, assign

NAME = "deepspeed_sp_compute_loss"
MODEL = Argument(1, "model")
LABELS, SHIFTED = "labels", "shift_labels"
PASSED = 'inputs["labels"] = inputs["shift_labels"]'
IGNORED = -100
ROWS = 1024  # of logits that are looked at together
CLOSE, APART = 0.02, 4.0  # of a loss in half precision; how much nearer to one sum than to the other

_shifts: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()  # of each model, once its loss has told


def look(code: Code) -> str | None:
    """The Trainer must hand the model labels that are moved already."""
    function = code.function(NAME)
    if function is None:
        return "the Trainer takes no loss from the model under sequence parallelism"
    if function.parameters[:3] != ("accelerator", MODEL.name, "inputs"):
        raise Unrecognised(f"{NAME} in {code.path} is not as any known release has it")
    return None if PASSED in function else "the loss is made of the logits"


def apply(patch: Patch, module: ModuleType) -> None:
    """Compute the loss of a model that shifts its labels itself."""

    def compute(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        model = MODEL.of(args, kwargs)
        inner = within(model)
        if _shifts.get(inner) is False:
            return original(*args, **kwargs)

        def called(**inputs: Any) -> Any:
            if _shifts.get(inner):
                return with_loss(model(**{name: v for name, v in inputs.items() if name != LABELS}), inputs)
            outputs = model(**inputs)
            if (told := shifts(outputs, inputs[SHIFTED])) is not None:
                _shifts[inner] = told
            return with_loss(outputs, inputs) if told else outputs

        args, kwargs = MODEL.replaced(args, kwargs, called)
        return original(*args, **kwargs)

    patch.wrap(module, NAME, compute)


def within(model: Any) -> Any:
    """The model inside an engine and PEFT's wrapper."""
    model = getattr(model, "module", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def shifts(outputs: Any, labels: Any) -> bool | None:
    """Whether the loss is that of ``labels`` moved once more; ``None``: this one cannot tell."""
    loss, logits = getattr(outputs, "loss", None), getattr(outputs, "logits", None)
    if loss is None or logits is None or logits.shape[:-1] != labels.shape:
        return False
    once, twice = mean(logits, labels), mean(logits[:, :-1], labels[:, 1:])
    return None if once is None or twice is None else nearer(float(loss.detach()), once, twice)


def nearer(loss: float, once: float, twice: float) -> bool | None:
    """Whether ``loss`` is ``twice`` and not ``once``; ``None`` where it might be either."""
    near, far = abs(loss - twice), abs(loss - once)
    if near > CLOSE * abs(twice) or APART * far < near:
        return False
    return True if APART * near < far else None


def mean(logits: Any, labels: Any) -> float | None:
    """The loss of ``labels``, a few rows at a time; ``None`` where none counts."""
    import torch

    total = torch.zeros((), device=logits.device)
    labels = labels.reshape(-1).to(logits.device)
    if not (counted := int((labels != IGNORED).sum())):
        return None
    with torch.no_grad():
        rows = zip(logits.reshape(-1, logits.shape[-1]).split(ROWS), labels.split(ROWS), strict=True)
        for said, right in rows:
            total += torch.nn.functional.cross_entropy(
                said.float(), right, ignore_index=IGNORED, reduction="sum"
            )
    return float(total) / counted


def with_loss(outputs: Any, inputs: dict[str, Any]) -> Any:
    """``outputs`` with the loss of labels that are moved already."""
    import torch

    logits = outputs.logits
    labels = inputs[SHIFTED].reshape(-1).to(logits.device)
    assign(outputs, "loss", None)  # with all that hangs on it
    loss = torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), labels, ignore_index=IGNORED
    )
    assign(outputs, "loss", loss)
    return outputs
