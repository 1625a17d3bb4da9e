"""``gradient_checkpointing_enable()`` without arguments chooses the reentrant variant.

What the user sees: ``Expected to mark a variable ready only once`` (DDP; always when HF Trainer trains
a PeftModel, for which it sets ``find_unused_parameters=True``), ``The parameter N has already been
reduced`` (ZeRO-1/2), a bare ``AssertionError`` (ZeRO-3), vision LoRA weights that never train, or
ranks that drift apart without an error.

Why: ``PreTrainedModel.gradient_checkpointing_enable`` fills a missing ``gradient_checkpointing_kwargs``
with ``{"use_reentrant": True}``. Reentrant checkpointing runs a nested backward for each segment,
which fires gradient hooks more than once per parameter, and it cuts the graph where a segment's
input does not require grad.

Since transformers 4.35.0, until 5.0.0, where the default became False.

The change: a wrapper, called once a run, that says ``use_reentrant=False`` where nobody said anything.

Upstream: https://github.com/huggingface/transformers/pull/43203
"""

from __future__ import annotations

from types import ModuleType

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.checkpoint_kwargs import say_non_reentrant

_METHOD = "gradient_checkpointing_enable"


def look(code: Code) -> str | None:
    """The bug is here while the method's body fills in ``use_reentrant: True``."""
    function = code.function(f"PreTrainedModel.{_METHOD}")
    if function is None or "gradient_checkpointing_kwargs" not in function.parameters:
        raise Unrecognised(f"PreTrainedModel.{_METHOD} takes no gradient_checkpointing_kwargs")
    if '{"use_reentrant": True}' not in function:
        return f"PreTrainedModel.{_METHOD} does not choose the reentrant variant"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Say ``use_reentrant=False`` on behalf of callers who said nothing."""
    patch.wrap(module.PreTrainedModel, _METHOD, say_non_reentrant)
