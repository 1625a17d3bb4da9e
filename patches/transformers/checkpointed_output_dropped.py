"""UMT5 trains without its blocks: what a checkpointed block puts out is dropped.

What the user sees: nothing. With checkpointing on, the loss is that of embeddings and final norms alone, and
no parameter of a block has a gradient (70 of 75 of a small one); generation then uses blocks nobody trained.

Why: ``UMT5Stack.forward`` hands the blocks' output on in the branch without checkpointing only.

Since transformers 4.31, which brought UMT5, until 4.53, whose blocks checkpoint themselves. T5, MT5 and every
other model of 4.31, 4.45 and 4.52 read what they compute.

The change: a stack that checkpoints takes the other branch, and each of its blocks checkpoints itself there
by the function that the model was given. No cache is kept, as upstream says of checkpointing.

Upstream: https://github.com/huggingface/transformers/pull/24477 (brought it)
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

STACK = "UMT5Stack.forward"
CHECKPOINTED = "layer_outputs = self._gradient_checkpointing_func("
INDENTED = "\n                hidden_states = layer_outputs[0]"
USE_CACHE = Argument(8, "use_cache")
# What a block takes may need a gradient, which reentrant checkpointing gives to positional arguments alone.
BY_PLACE = ("encoder_hidden_states",)


def look(code: Code) -> str | None:
    """Blocks' output must be read in the branch without checkpointing only."""
    stack = code.function(STACK)
    if stack is None:
        raise Unrecognised(f"{code.module} has no {STACK}")
    if CHECKPOINTED not in stack:
        return "blocks checkpoint themselves"
    return None if INDENTED in stack else "what checkpointed blocks put out is read"


def apply(patch: Patch, module: ModuleType) -> None:
    """Let the blocks of a stack that checkpoints do it themselves."""

    def forward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not (self.gradient_checkpointing and self.training):
            return original(self, *args, **kwargs)
        checkpoint = self._gradient_checkpointing_func
        with contextlib.ExitStack() as swapped:
            swapped.enter_context(patch.swapped(self, "gradient_checkpointing", False))
            for block in self.block:
                run = functools.partial(_checkpointed, checkpoint, block.forward)
                swapped.enter_context(patch.swapped(block, "forward", run))
            args, kwargs = USE_CACHE.replaced(args, kwargs, False)
            return original(self, *args, **kwargs)

    patch.wrap(module.UMT5Stack, "forward", forward)


def _checkpointed(checkpoint: Callable[..., Any], run: Callable[..., Any], *args: Any, **said: Any) -> Any:
    names = [name for name in BY_PLACE if name in said]
    placed = [said.pop(name) for name in names]
    said |= {"past_key_value": None}

    def block(*inputs: Any) -> Any:
        own, more = inputs[: len(args)], inputs[len(args) :]
        return run(*own, **dict(zip(names, more, strict=True)), **said)

    return checkpoint(block, *args, *placed)
