"""``'MiniCPMV' object has no attribute 'prepare_inputs_for_generation'``, from ``get_peft_model``.

What the user sees: LoRA with ``task_type="CAUSAL_LM"``, as ms-swift and LLaMA-Factory say it, on a model
whose code is not transformers' own (MiniCPM-V and MiniCPM-o, InternVL, Janus, Phi-4-multimodal, Dream)
ends before the first step.

Why: PEFT keeps the model's ``prepare_inputs_for_generation``, to lay its own over it in ``generate()``. Up to
4.49 every ``PreTrainedModel`` had the method from ``GenerationMixin``. From 4.50 on only those that name the
mixin have it, and code that leaves generating to a language model inside it never did.

Since transformers 4.50.0, with every PEFT.

The change: while PEFT looks, such a model's class has what every model had up to 4.49, ``GenerationMixin``'s
method. Nothing stays on the class. A class of transformers' own without it is one that cannot be trained on
a causal loss (``AutoModel`` for ``AutoModelForCausalLM``): there PEFT's error says what is wrong, and stands.

Upstream: https://github.com/modelscope/ms-swift/issues/6204, https://github.com/huggingface/peft/issues/2769
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch

CLASSES = ("PeftModelForCausalLM", "PeftModelForSeq2SeqLM")
MODEL = Argument(0, "model")
METHODS = ("prepare_inputs_for_generation", "_prepare_encoder_decoder_kwargs_for_generation")


def look(code: Code) -> str | None:
    """PEFT must ask every model for the method."""
    function = code.function(f"{CLASSES[0]}.__init__")
    if function is None or f"self.base_model.{METHODS[0]}" not in function:
        return "this PEFT does not ask a model for prepare_inputs_for_generation"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Lend the methods to the model's class while PEFT wraps it."""

    def construct(original: Callable[..., None], self: Any, /, *args: Any, **kwargs: Any) -> None:
        model = MODEL.of(args, kwargs)
        with contextlib.ExitStack() as lent:
            for name, method in missing(model).items():
                lent.enter_context(patch.swapped(type(model), name, method))
            original(self, *args, **kwargs)

    for name in CLASSES:
        patch.wrap(getattr(module, name), "__init__", construct)


def missing(model: Any) -> dict[str, Any]:
    """What a model of the user's own code would have had from ``PreTrainedModel`` up to 4.49."""
    from transformers import GenerationMixin, PreTrainedModel

    own_code = isinstance(model, PreTrainedModel) and not type(model).__module__.startswith("transformers.")
    return {
        name: getattr(GenerationMixin, name)
        for name in METHODS
        if own_code and hasattr(GenerationMixin, name) and not hasattr(model, name)
    }
