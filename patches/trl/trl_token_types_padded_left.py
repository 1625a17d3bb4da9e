"""TRL's GRPO and RLOO pad prompts on the left, and what marks the images in them by the processor's own side.

What the user sees: nothing, or `shape mismatch: value tensor of shape [3, 339] cannot be broadcast to
indexing result of shape [3, 336]` below `get_rope_index`. A vision-language model is trained by
``GRPOTrainer`` or ``RLOOTrainer``, the processor is handed over by the caller and pads on the right, and a
batch holds prompts of several lengths: gradients are 8 to 63 % off those of the same processor that pads on
the left (small Qwen2-VL and Qwen2.5-VL, TRL 1.16).

Why: prompts are padded on the left whatever the processor says. What else it makes of them (`token_type_ids`,
`mm_token_type_ids`) TRL takes from a second call, which says no side. In a row that was padded the marks then
lie on other tokens than the image: Qwen's positions are those of another text, Gemma 3 lets text look ahead
and images not.

Since TRL 0.24, which made the second call; 1.16 has it. Which models read the marks is for transformers to
say: Gemma 3, and from 5.3 on the Qwen family and others.

The change: while TRL makes that call the tokenizer pads on the left. Where rewards, tools and rollouts of the
caller run it has its own side again, and so afterwards. A processor that pads on the left, or a tokenizer,
is left alone.

Upstream: https://github.com/huggingface/trl/issues/5785, closed: the caller is to set the side
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Function, Patch, assign, of_module

TRAINERS = ("GRPOTrainer", "RLOOTrainer")
SCORES, TURN = "_generate_and_score_completions", "_generate_single_turn"  # TRL 0.24 calls in its turn
OF_THE_CALLER = ("_generate", "_calculate_rewards")  # within what scores: rollouts, tools and rewards
CALLS = 'text=prompts_text, padding=True, return_tensors="pt"'
SIDE = "padding_side"


def look(code: Code) -> str | None:
    """It must ask the processor for padded prompts without a side."""
    asks = any(_asks(code, owner) for owner in TRAINERS)
    return None if asks else "the trainer does not ask for padded prompts without a side"


def _asks(code: Code, owner: str) -> str | None:
    """The method of ``owner`` that makes the call."""
    methods: dict[str, Function | None] = {name: code.function(f"{owner}.{name}") for name in (SCORES, TURN)}
    return next((name for name, found in methods.items() if found and CALLS in found), None)


def apply(patch: Patch, module: ModuleType) -> None:
    """Pad on the left where TRL asks, and as the caller does in what is the caller's."""
    theirs: dict[int, str] = {}  # a tokenizer's own side, by its id, while it is changed

    def asks(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        tokenizer = getattr(self.processing_class, "tokenizer", None)
        side = getattr(tokenizer, SIDE, "left")
        if side == "left":
            return original(self, *args, **kwargs)
        theirs[id(tokenizer)] = side
        try:
            with padded(tokenizer, "left"):
                return original(self, *args, **kwargs)
        finally:
            del theirs[id(tokenizer)]

    def of_the_caller(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        tokenizer = getattr(self.processing_class, "tokenizer", None)
        if id(tokenizer) not in theirs:
            return original(self, *args, **kwargs)
        with padded(tokenizer, theirs[id(tokenizer)]):
            return original(self, *args, **kwargs)

    code = of_module(module)
    for owner in TRAINERS:
        if name := _asks(code, owner):
            trainer = getattr(module, owner)
            patch.wrap(trainer, name, asks)
            for method in OF_THE_CALLER if name == SCORES else ():
                if method in vars(trainer):
                    patch.wrap(trainer, method, of_the_caller)


@contextlib.contextmanager
def padded(tokenizer: Any, side: str) -> Iterator[None]:
    """It pads on that side in here."""
    before = getattr(tokenizer, SIDE)
    assign(tokenizer, SIDE, side)
    try:
        yield
    finally:
        assign(tokenizer, SIDE, before)
