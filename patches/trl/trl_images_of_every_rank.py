"""TRL's GRPO and RLOO gather the images of a batch on those ranks alone that have one.

What the user sees: with texts beside images, a training by ``GRPOTrainer`` or ``RLOOTrainer`` hangs on two
or more ranks at the first batch that has an image on one of them and none on another, or ends in an error of
the backend about collectives that differ. It does so under every engine, plain DDP included.

Why: after it has scored the answers a rank gathers what the log of completions shows. It gathers the images
only if one of its own rows has one; the others go on, and the two wait in different collectives.

Since TRL 0.24, which took lists of images; 1.16 has it unless ``log_multimodal=False`` is said.

The change: a rank that has gathered no image gathers empty lists, in the same place. The log then has
a list of images for each prompt. Not with vLLM, where TRL gathers more after the images, and not where images
lie in the prompts or come from tools alone: only a column ``images`` is known to every rank.

Upstream: no report of this was found; https://github.com/huggingface/trl/issues/5139 asks for such data, and
is told that it is supported.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch

TRAINERS = ("GRPOTrainer", "RLOOTrainer")
NAME = "_generate_and_score_completions"
ROWS = Argument(0, "inputs")
OF_ROWS, COUNTED = "images", "num_images"  # what rows may hold; what comes of them where some were gathered
ASKS, GATHERS = "img_list == [] for img_list in images", "gather_object(images)"


def look(code: Code) -> str | None:
    """It must gather images only where this rank has one."""
    scores = [function for owner in TRAINERS if (function := code.function(f"{owner}.{NAME}"))]
    alone = any(ASKS in function and GATHERS in function for function in scores)
    return None if alone else "the trainer gathers no images that other ranks may lack"


def apply(patch: Patch, module: ModuleType) -> None:
    """Let ranks without an image take part."""

    def score(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        rows = ROWS.of(args, kwargs)
        found = original(self, *args, **kwargs)
        lacks = rows and OF_ROWS in rows[0] and COUNTED not in found
        if lacks and not self.use_vllm and getattr(self, "log_multimodal", True):
            gathered = module.gather_object([[] for _ in rows])
            if any(gathered):
                self._logs["images"].extend(gathered)
        return found

    for owner in TRAINERS:
        if NAME in vars(getattr(module, owner, object)):
            patch.wrap(getattr(module, owner), NAME, score)
