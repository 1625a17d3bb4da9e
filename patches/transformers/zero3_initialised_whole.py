"""``IndexError: index 0 is out of bounds for dimension 0 with size 0`` where a ZeRO-3 model is made.

What the user sees: that error from ``from_pretrained`` (Gemma3) or ``from_config`` (BERT), or
``Fan in and fan out can not be computed for tensor with fewer than 2 dimensions`` (SigLIP); or nothing,
and what the checkpoint lacks, such as a new head, holds whatever was in memory, NaN among it.

Why: under ``zero.Init`` every rank holds a part of each weight and an empty tensor in its place.
DeepSpeed gathers for functions handed to ``Module.apply``. transformers initialises through a
``smart_apply`` of its own since 4.51 and writes into the empty tensor; 4.5x gathers what the checkpoint
lacks by tensors of the state dict, which are no parameters any more, and so gathers nothing.

What is done: while ``_init_weights`` works on a module, a partitioned parameter is gathered where it is
first touched; rank 0's values are kept on every rank. Without ZeRO-3 nothing is done, once a module while a
model is made.

Later releases (5.19 and those after it were read) gather by themselves for a model that ``from_config``
makes, initialise it on rank 0 alone and mark its modules as initialised on that rank. Where such a model is a
part of one that its constructor makes, other ranks initialised the part again: nothing happens to an empty
tensor, but a gather waits for rank 0 for ever. So nothing is gathered there, and the modules are marked on
every rank.

transformers 4.51 to today. Upstream: https://github.com/huggingface/transformers/issues/43638,
https://github.com/axolotl-ai-cloud/axolotl/issues/3298, https://github.com/hiyouga/LLaMA-Factory/issues/9345
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.zero3_parameters import any_absent, whole_when_touched

INTEGRATION = "transformers.integrations.deepspeed"
BY_ONE_RANK = "initialize_weights_zero3"  # of it: gathers on every rank, and initialises on rank 0


def look(code: Code) -> str | None:
    """Initialising must go past DeepSpeed's ``apply``, through one method a module."""
    start = code.function("PreTrainedModel.initialize_weights")
    if start is None or "smart_apply" not in start:
        return "initialises through Module.apply, for which DeepSpeed gathers"
    one = code.function("PreTrainedModel._initialize_weights")
    if one is None or one.parameters[:2] != ("self", "module"):
        raise Unrecognised("PreTrainedModel has no _initialize_weights(self, module)")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Gather what is touched."""

    by_one_rank: weakref.WeakSet[Any] = weakref.WeakSet()  # models of which rank 0 makes the values now

    def initialise(original: Callable[..., Any], self: Any, /, module: Any, *args: Any, **kwargs: Any) -> Any:
        done = getattr(module, "_is_hf_initialized", False)
        if done or self in by_one_rank or not any_absent(module):
            return original(self, module, *args, **kwargs)
        with whole_when_touched(changed=True):
            return original(self, module, *args, **kwargs)

    def apart(original: Callable[..., Any], /, model: Any, *args: Any, **kwargs: Any) -> Any:
        members = list(model.modules())
        by_one_rank.update(members)
        try:
            made = original(model, *args, **kwargs)
        finally:
            by_one_rank.difference_update(members)
        mark(patch, model)
        return made

    patch.wrap(module.PreTrainedModel, "_initialize_weights", initialise)
    integration = sys.modules.get(INTEGRATION)
    if integration is not None and hasattr(integration, BY_ONE_RANK):
        patch.wrap(integration, BY_ONE_RANK, apart)


def mark(patch: Patch, model: Any) -> None:
    """Have ``model`` say of each of its modules that it is initialised, as it does on rank 0."""
    with patch.swapped(model, "_init_weights", lambda module: None):
        for module in model.modules():
            model._initialize_weights(module, False)
