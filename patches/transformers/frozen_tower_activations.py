"""A frozen vision tower keeps its activations where transformers 4 kept none.

What the user sees: more memory than transformers 4 needed, most of all where the tower's own checkpointing
is switched off because it is frozen: 98 GiB in place of 68 in one thread. Under ZeRO-3 a step gathers the
tower's parameters for its backward too.

Why: ``enable_input_require_grads()``, which checkpointing calls, hooks the input embeddings of every model
inside a model, a tower's patch embedding among them. What it hands on then requires grad, so that all of a
frozen tower is in the graph, for a backward whose gradients nobody uses. Before, it hooked the text
embeddings alone.

Since transformers 5.0.0.

The change: where all checkpointed layers are so with ``use_reentrant=False``, a tower of transformers' own is
asked for no input embeddings then. Only reentrant checkpointing needs an input that requires grad; what is
trained in a tower has its gradient through its own parameters. The text embeddings are hooked as they were,
and so is everything where no layer is checkpointed or one is with another function. Whether the tower is
frozen is not asked: it may change after.

Upstream: https://github.com/huggingface/transformers/pull/41993 (every model's embeddings),
https://github.com/modelscope/ms-swift/pull/9945
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

ENABLE = "enable_input_require_grads"
ASKED = "get_input_embeddings"
UPSTREAM = "transformers.models."  # code of a model's own may call checkpoint() in its own way
OBEYS = ("torch", "transformers", "vlmpatch")  # ms-swift's function of that name does what it likes


def look(code: Code) -> str | None:
    """The models inside a model must be hooked too."""
    function = code.function(f"PreTrainedModel.{ENABLE}")
    if function is None or "self.modules()" not in function or f"module.{ASKED}()" not in function:
        return "the model's own input embeddings alone are made to require grad"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Leave towers out where nothing needs the gradient of their input."""

    def enable(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as meanwhile:
            for tower in towers(self, module.PreTrainedModel) if non_reentrant(self) else ():
                meanwhile.enter_context(patch.swapped(tower, ASKED, none))
            return original(self, *args, **kwargs)

    patch.wrap(module.PreTrainedModel, ENABLE, enable)


def none() -> None:
    """What a model without input embeddings answers."""


def towers(model: Any, pretrained: type) -> list[Any]:
    """The models of transformers inside ``model`` whose input embeddings are not its own."""
    own = _embeddings(model)
    inner = [each for each in model.modules() if isinstance(each, pretrained) and each is not model]
    return [
        each
        for each in inner
        if own is not None and type(each).__module__.startswith(UPSTREAM) and _embeddings(each) is not own
    ]


def _embeddings(model: Any) -> Any:
    try:
        return model.get_input_embeddings()
    except NotImplementedError:
        return None


def non_reentrant(model: Any) -> bool:
    """Whether layers of ``model`` are checkpointed, and each of them with ``use_reentrant=False``."""
    functions = [
        vars(module).get("_gradient_checkpointing_func")
        for module in model.modules()
        if vars(module).get("gradient_checkpointing") is True
    ]
    return bool(functions) and all(map(_says_non_reentrant, functions))


def _says_non_reentrant(function: Any) -> bool:
    """Whether it is ``partial(checkpoint, use_reentrant=False)``, of a ``checkpoint`` that obeys."""
    if not isinstance(function, functools.partial) or function.keywords.get("use_reentrant") is not False:
        return False
    package: str = getattr(function.func, "__globals__", {}).get("__name__", "")
    return package.partition(".")[0] in OBEYS
