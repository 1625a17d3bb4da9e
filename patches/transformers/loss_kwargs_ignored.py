"""Nothing is seen, or a loss that grows with ``gradient_accumulation_steps``, and gradients with it.

What the user sees: with Gemma 3, LLaVA, PaliGemma or Idefics, a batch of 4 and four accumulated batches of 1
train differently; the loss of the second is 4 times as high.

Why: their ``forward`` ends in ``**kwargs``, from which the Trainer concludes that they divide the loss by the
number of tokens it hands them. They compute their loss themselves and ignore it, and nobody divides.

Since transformers 4.46.2, until each model's own loss went, most of them by 4.52; in remote code, still.

The change: a Trainer whose model's ``forward`` has a cross entropy of its own and never uses the number takes
the model for one that does not divide. A model that says ``accepts_loss_kwargs`` itself is left alone, and
one of a script's own whose ``forward`` hands the number on: to a function that may divide by it, or to a
model that gets the labels. So is a Trainer whose own ``compute_loss`` does something with the number.

Upstream: https://github.com/huggingface/transformers/issues/39123
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

from .._shared.compute_losses import uses_count

ACCEPTS = "model_accepts_loss_kwargs"
OWN_LOSS = ("CrossEntropyLoss(", "cross_entropy(")
USES_COUNT = ("loss_function(", "num_items_in_batch", "loss_kwargs)")
LABELS = "labels"
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
        own = uses_count(type(self), trainer)
        if getattr(self, ACCEPTS, False) and not own and ignores_count(self.model):
            patch.replace(self, ACCEPTS, False)

    patch.wrap(trainer, "__init__", construct)


def ignores_count(model: Any) -> bool:
    """Whether the model's own ``forward`` computes a loss without the number of tokens."""
    base = (
        model.get_base_model()
        if hasattr(model, "peft_config") and hasattr(model, "get_base_model")
        else model
    )
    if hasattr(type(base), "accepts_loss_kwargs"):
        return False
    try:
        source = inspect.getsource(inspect.unwrap(type(base).forward))
    except (OSError, TypeError):
        return False
    if not any(own in source for own in OWN_LOSS) or any(used in source for used in USES_COUNT):
        return False
    return type(base).__module__.startswith(UPSTREAM) or not hands_on(source, base)


def hands_on(source: str, model: Any) -> bool:
    """Whether a ``forward`` hands what it takes by ``**`` to what may compute a loss of it.

    A model that it calls without the labels (LLaVA's language model) computes none.

    Args:
        source: of the ``forward``.
        model: it belongs to.
    """
    try:
        function = ast.parse(textwrap.dedent(source)).body[0]
    except SyntaxError:  # of a text that stands further left than its function
        return True
    if not isinstance(function, ast.FunctionDef) or function.args.kwarg is None:
        return False
    taken, rest = function.args, function.args.kwarg.arg
    named = {each.arg for each in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)}
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and _given(node, rest)]
    return any(
        LABELS not in named or _given(each, LABELS) or not _is_model(each.func, model) for each in calls
    )


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
