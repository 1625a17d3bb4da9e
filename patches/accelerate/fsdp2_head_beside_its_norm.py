"""FSDP2 gives the head of a vision-language model a unit of its own, which nothing gathers when it is read.

What the user sees: full fine-tuning under FSDP2 by HF Trainer, TRL or accelerate, of a model whose head and
embeddings are not tied. With TRL, silent: SFT, DPO, KTO, GRPO and RLOO train, the first loss is right, but
each rank's part of ``lm_head.weight`` learns from that rank's samples alone. With code that multiplies by
``lm_head.weight`` itself, as a fused cross-entropy does: ``aten.mm.default: got mixed torch.Tensor and
DTensor``. A text model has neither.

Why: accelerate shards the last norm and the head as one unit, which is gathered when the norm is called, so
that a weight may be read whose module is never called. It looks for the norm among the children of the base
model, where a text model has it. A vision-language model has it in its language model, a PeftModel in what
it wraps; the head then is a unit by itself. TRL, which reads the weight, gathers it by ``full_tensor()``,
whose backward takes the gradient for the same on every rank and averages nothing.

Since accelerate 1.14.0, which made these units; 1.15.0 has it.

The change: where accelerate finds no norm, the one of the decoder is taken, as for a text model.

Upstream: https://github.com/huggingface/accelerate/pull/4015 (the units),
https://github.com/huggingface/trl/pull/6077 (``full_tensor()``)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch

NAME, SHARDS = "_find_final_norm", "fsdp2_prepare_model"
MODEL = Argument(0, "model")


def look(code: Code) -> str | None:
    """It must look among the base model's own children, for a norm to put beside the head."""
    finds, shards = code.function(NAME), code.function(SHARDS)
    if finds is None or shards is None:
        return f"this accelerate has no {NAME}"
    looks = "named_children()" in finds and "get_decoder" not in finds and f"{NAME}(model)" in shards
    return None if looks else "the norm is not looked for among the base model's children alone"


def apply(patch: Patch, module: ModuleType) -> None:
    """Find the norm that the head comes after."""

    def find(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        found, model = original(*args, **kwargs), MODEL.of(args, kwargs)
        return norm_of(model) if found is None and has_own_head(model) else found

    patch.wrap(module, NAME, find)


def has_own_head(model: Any) -> bool:
    """Whether its head has a weight of its own: what embeddings share is gathered when they are called."""
    head, embeddings = told_by(model, "get_output_embeddings"), told_by(model, "get_input_embeddings")
    weight = getattr(head, "weight", None)
    return weight is not None and weight is not getattr(embeddings, "weight", None)


def norm_of(model: Any) -> Any:
    """Norm after a model's last layer: the decoder's last child of such a name, as accelerate finds one."""
    children: Callable[[], Any] = getattr(told_by(model, "get_decoder"), "children", tuple)
    norms = [child for child in children() if "Norm" in type(child).__name__]
    return norms[-1] if norms else None


def told_by(model: Any, name: str) -> Any:
    """What a model's getter of this name returns; nothing where it has none or its code knows none."""
    with contextlib.suppress(AttributeError, NotImplementedError, TypeError):
        return getattr(model, name)()
    return None
