"""Nothing is seen, or a loss that grows with ``gradient_accumulation_steps``, and gradients with it.

What the user sees: with Qwen2-VL and Qwen2.5-VL on transformers 4.53 to 4.55, with Gemma 3, LLaVA,
PaliGemma, Idefics, Qwen2.5-Omni or Phi-4-multimodal, or a head that classifies sequences or images, a batch
of 4 and four accumulated batches of 1 train differently; the loss of the second is 4 times as high, times
the ranks where tokens are averaged across devices.

Why: their ``forward`` ends in ``**kwargs``, from which the Trainer concludes that they divide the loss by
the number of tokens it hands them. They compute their loss themselves and ignore it, or call the loss of
their kind without it, or that one ignores it (regression, several labels), and nobody divides.

Since transformers 4.46.2, Qwen2-VL, Qwen2.5-VL and GLM-4V from 4.53.0 until 4.56; others until each model's
own loss went, most of the vision-language models by 5.19; of classifiers, and in remote code, still.

The change: a Trainer whose model's ``forward`` has a loss and never uses the number takes the model for one
that does not divide. A model that says ``accepts_loss_kwargs`` itself, or was given another loss function,
is left alone, and one of a script's own whose ``forward`` hands the number on: to a function that may
divide by it, or to a model that gets the labels. So is a Trainer that smooths labels, that was given a
loss function, that says itself whether its loss is divided, or whose own ``compute_loss`` does something
with the number or divides by steps.

Upstream: https://github.com/huggingface/transformers/issues/39123,
https://github.com/huggingface/transformers/pull/40333,
https://github.com/huggingface/transformers/issues/47688
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

from .._shared.compute_losses import COUNT, divides_itself, uses_count

ACCEPTS = "model_accepts_loss_kwargs"
# Losses of the Trainer's or of a script's, and what transformers asks a class since 5.19.
ELSEWHERE = ("label_smoother", "compute_loss_func", "loss_is_scaled_for_ga")
OWN_LOSS = ("CrossEntropyLoss(", "cross_entropy(")
LOSS, LABELS = "loss", "labels"
KIND = "self.loss_function("  # the loss of a model's kind
GIVEN = "_loss_function"  # where transformers keeps one that a script sets
CLASSIFIES = "ForSequenceClassificationLoss"
UNCOUNTED = ("regression", "multi_label_classification")  # kinds of it that ignore the number
UPSTREAM = "transformers.models."  # Gemma 3n hands labels and number to a model that computes no loss


def look(code: Code) -> str | None:
    """The Trainer must draw its conclusion from a signature."""
    function = code.function("Trainer.__init__")
    return None if function is not None and ACCEPTS in function else f"Trainer has no {ACCEPTS}"


def apply(patch: Patch, module: ModuleType) -> None:
    """Correct the conclusion once a trainer is built."""
    trainer = module.Trainer  # as it is now: a script may put its own in this place

    def construct(original: Callable[..., None], self: Any, /, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if getattr(self, ACCEPTS, False) and is_left_to_it(self, trainer) and ignores_count(self.model):
            patch.replace(self, ACCEPTS, False)

    patch.wrap(trainer, "__init__", construct)


def is_left_to_it(self: Any, trainer: type) -> bool:
    """Whether a Trainer has its loss of the model, and nothing of its class divides it."""
    if any(getattr(self, name, None) is not None for name in ELSEWHERE):
        return False
    return not uses_count(type(self), trainer) and not divides_itself(type(self), trainer)


def ignores_count(model: Any) -> bool:
    """Whether the model's own ``forward`` computes a loss without the number of tokens."""
    base = (
        model.get_base_model()
        if hasattr(model, "peft_config") and hasattr(model, "get_base_model")
        else model
    )
    if hasattr(base, "accepts_loss_kwargs") or hasattr(base, GIVEN):
        return False
    try:
        source = inspect.getsource(inspect.unwrap(base.forward))  # Liger gives a model one of its own
    except (OSError, TypeError):
        return False
    if COUNT in source or LOSS not in source or not (function := _parsed(source)):
        return False
    own = any(each in source for each in OWN_LOSS)
    handed = _handed(function)
    if any(LOSS in ast.unparse(call.func) for call in handed):
        return is_uncounted(base)
    if str(type(base).__module__).startswith(UPSTREAM):
        return own or not any(_labelled(function, call) for call in handed)
    return (own or KIND in source) and not hands_on(source, base)


def is_uncounted(model: Any) -> bool:
    """Whether ``model`` classifies by a loss that is a mean, whatever number it is handed."""
    if getattr(getattr(model, "loss_function", None), "__name__", None) != CLASSIFIES:
        return False
    kind = getattr(model.config, "problem_type", None)
    return kind in UNCOUNTED or (kind is None and model.config.num_labels == 1)


def hands_on(source: str, model: Any) -> bool:
    """Whether a ``forward`` hands what it takes by ``**`` to what may compute a loss of it.

    A model that it calls without the labels (LLaVA's language model) computes none.

    Args:
        source: of the ``forward``.
        model: it belongs to.
    """
    function = _parsed(source)
    if function is None:
        return True
    handed = _handed(function)
    return any(_labelled(function, call) or not _is_model(call.func, model) for call in handed)


def _parsed(source: str) -> ast.FunctionDef | None:
    """None of what is no function's text.

    One of a class is not dedented first, for its strings may stand further left.
    """
    try:
        body = ast.parse(f"if True:\n{source}" if source[:1].isspace() else source).body[0]
    except SyntaxError:
        return None
    function = body.body[0] if isinstance(body, ast.If) else body
    return function if isinstance(function, ast.FunctionDef) else None


def _handed(function: ast.FunctionDef) -> list[ast.Call]:
    """The calls that are handed what ``function`` takes by ``**``, or something made of it."""
    rest = function.args.kwarg
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    return [call for call in calls if rest is not None and _given(call, rest.arg)]


def _labelled(function: ast.FunctionDef, call: ast.Call) -> bool:
    """Whether ``call``, which is handed what ``function`` takes by ``**``, gets the labels as well."""
    taken = function.args
    named = {each.arg for each in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)}
    return LABELS not in named or _given(call, LABELS)


def _given(call: ast.Call, name: str) -> bool:
    """Whether ``call`` is handed ``name``, or something made of it."""
    handed = [*call.args, *(each.value for each in call.keywords)]
    inside = (node for each in handed for node in ast.walk(each))
    return any(isinstance(node, ast.Name) and node.id == name for node in inside)


def _is_model(called: ast.expr, model: Any) -> bool:
    """Whether what is called as ``called`` in a ``forward`` of ``model`` is a model itself."""
    text = ast.unparse(called)
    if text.startswith("super("):
        return True
    found = model
    for name in text.removeprefix("self.").split(".") if text.startswith("self.") else [text]:
        found = getattr(found, name, None)
    return hasattr(found, "get_input_embeddings")
