"""Nothing is seen: with ``label_smoothing_factor`` a vision-language model learns to repeat its input.

What the user sees: no error. With label smoothing the loss of Qwen2-VL, LLaVA, MiniCPM-V and their like has
nothing to do with the one without; the model is trained to say each token where it reads it, not before.

Why: to smooth labels the Trainer takes them from the model, which would have shifted them, and computes the
loss itself. It shifts them where the model's class is in the list of causal language models. Most
vision-language models are not, nor is a model of code that comes with its checkpoint. ms-swift does as much.

Since transformers has had label smoothing, to this day; shifted for the classes on the list since 4.21.

The change: labels that are shifted nowhere are shifted where they are smoothed: those of a batch that the
Trainer has prepared, which are the tokens of that batch themselves, beside the outputs of a causal language
model as long as they are. Labels that were moved or cut by a script, by ms-swift's sequence parallelism, or
that are a text of their own, as those of an encoder and decoder, are smoothed as before.

Upstream: https://github.com/huggingface/transformers/pull/17987 shifts them for the list
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.by_identity import ByIdentity

TRAINER, SMOOTHER, PREPARE = "Trainer", "label_smoother", "_prepare_inputs"
SWIFT = "swift.trainers.seq2seq_trainer"
OUTPUTS, LABELS, SHIFT = Argument(0, "model_output"), Argument(1, "labels"), Argument(2, "shift_labels")
CAUSAL = "CausalLMOutput"  # in the name of its class, which says what a model's outputs are
CUT = "logits_to_keep"  # of a batch whose labels ms-swift has cut to what the model is asked for
IGNORED = -100

_are_tokens, _unshifted = ByIdentity(), ByIdentity()  # of each smoother, and of labels


def look(code: Code) -> str | None:
    """The Trainer must shift smoothed labels by a list of classes."""
    if code.module == SWIFT:
        return None
    function = code.function(f"{TRAINER}.compute_loss")
    if function is None or code.function(f"{TRAINER}.{PREPARE}") is None:
        raise Unrecognised(f"{code.path} has no Trainer as any known release does")
    if f"self.{SMOOTHER}(outputs, labels, shift_labels=True" not in function:
        return "this Trainer shifts no smoothed labels by itself"
    return (
        None
        if "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES" in function
        else "this Trainer does not go by a list of classes"
    )


def apply(patch: Patch, module: ModuleType) -> None:
    """Know the labels that a batch came with, and shift those."""

    def prepare(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        inputs = original(self, *args, **kwargs)
        smoother = getattr(self, SMOOTHER, None)
        if smoother is not None and isinstance(inputs, Mapping):
            (note_cut if module.__name__ == SWIFT else note)(smoother, inputs)
        return inputs

    def smooth(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        labels = LABELS.of(args, kwargs)
        if not SHIFT.of(args, kwargs) and _unshifted.get(labels) and causal(OUTPUTS.of(args, kwargs), labels):
            args, kwargs = SHIFT.replaced(args, kwargs, True)
        return original(self, *args, **kwargs)

    if module.__name__ == SWIFT:
        patch.wrap(module.Seq2SeqTrainer, PREPARE, prepare)
        return
    patch.wrap(module.Trainer, PREPARE, prepare)
    patch.wrap(module.LabelSmoother, "__call__", smooth)


def note(smoother: Any, inputs: Mapping[str, Any]) -> None:
    """Remember the labels of a batch if they are its tokens; looked at until one batch has told."""
    labels, tokens = inputs.get("labels"), inputs.get("input_ids")
    shape = getattr(labels, "shape", None)
    if shape is None or getattr(tokens, "shape", None) != shape:  # a list of texts has none
        return
    if _are_tokens.get(smoother) is None and (told := equal(labels, tokens)) is not None:
        _are_tokens.put(smoother, told)
    if _are_tokens.get(smoother):
        _unshifted.put(labels, True)


def note_cut(smoother: Any, inputs: Mapping[str, Any]) -> None:
    """The same of what is left of such labels once ms-swift has cut them."""
    if CUT in inputs and _are_tokens.get(smoother):
        _unshifted.put(inputs["labels"], True)


def equal(labels: Any, tokens: Any) -> bool | None:
    """Whether what is to be learned is what is read in the same place; ``None`` where nothing is."""
    learned = labels != IGNORED
    return bool((labels == tokens)[learned].all()) if bool(learned.any()) else None


def causal(outputs: Any, labels: Any) -> bool:
    """Whether these are a causal language model's, of each label one."""
    logits = getattr(outputs, "logits", None)
    return CAUSAL in type(outputs).__name__ and logits is not None and logits.shape[:-1] == labels.shape
