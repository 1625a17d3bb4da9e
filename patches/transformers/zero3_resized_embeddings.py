"""Under ZeRO-3 tokens added to a frozen model set its embeddings free again, and nothing says so.

What the user sees: nothing. Tokens are added once the model is frozen, around an adapter or for a stage
that trains only a projector, by ``resize_token_embeddings``: the whole input embedding is trained, which
under DDP and ZeRO-2 stays frozen. No adapter is saved with it, so what is loaded later is another model;
the norm of gradients is larger, and clipping makes every other update smaller. VILA's and LLaVA's scripts
for LoRA add a token at that place.

Why: the embedding's weight is replaced. Under ZeRO-3 a new parameter takes its place, trainable as every
new one is; elsewhere the old parameter gets new data. Whether it was trained is asked of the new one.

Since transformers 4.43.2.

The change: the weight that comes out of the resizing is trained if the one that went in was.

Upstream: https://github.com/huggingface/transformers/issues/26861, ended for all, and for ZeRO-3 brought
back by https://github.com/huggingface/transformers/pull/32192
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

OWNER = "PreTrainedModel"
RESIZES = "_get_resized_embeddings"
REPLACED = "old_embeddings.weight = new_embeddings.weight"
ASKED = "old_embeddings.weight.requires_grad"


def look(code: Code) -> str | None:
    """The old weight must be replaced before it is asked for ``requires_grad``."""
    whole, resizing = (code.function(f"{OWNER}.{name}") for name in ("_resize_token_embeddings", RESIZES))
    if whole is None or resizing is None or resizing.parameters[:2] != ("self", "old_embeddings"):
        raise Unrecognised(f"{OWNER} has no {RESIZES}(self, old_embeddings)")
    if REPLACED not in resizing:
        return "the old embedding keeps its parameter"
    asked, replaced = (whole.source.find(text) for text in (ASKED, RESIZES))
    return "asks whether it was trained before it is resized" if 0 <= asked < replaced else None


def apply(patch: Patch, module: ModuleType) -> None:
    """Hand the weight's ``requires_grad`` on to the one that takes its place."""

    def resized(
        original: Callable[..., Any], self: Any, /, old_embeddings: Any, *args: Any, **kwargs: Any
    ) -> Any:
        trained = old_embeddings.weight.requires_grad
        made = original(self, old_embeddings, *args, **kwargs)
        made.weight.requires_grad_(trained)
        return made

    patch.wrap(getattr(module, OWNER), RESIZES, resized)
