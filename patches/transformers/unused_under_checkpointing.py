"""HF Trainer, DDP, checkpointing: ``Expected to have finished reduction in the prior iteration``.

What the user sees: that error, or a hang, when a vision-language model is tuned with gradient checkpointing
on. The same run trains with checkpointing off.

Why: the Trainer sets ``find_unused_parameters = not is_gradient_checkpointing``, a rule of the days of
reentrant checkpointing, which DDP's search breaks. Parts of a tower are never used (LLaVA takes the features
of the last layer but one, SigLIP's ``post_layernorm`` feeds a pooled output nobody reads), a rank without an
image uses none of it, and an expert no token was routed to is not used either. Non-reentrant checkpointing
and the search get on well.

Since the Trainer's first DDP; transformers 4.45 to 5.23 have the rule.

The change: where the user said nothing, the model trains a vision or audio tower, or experts of which each
is a module, and its checkpointing is non-reentrant, the search stays on, as it is with checkpointing off. A
tower is known by what the configuration says, else by a convolution over pictures that lies beside the
embedding of a text: Ovis and Phi-3-vision have names of their own. A dense text model, a model of pictures
alone, a frozen tower, frozen experts, ``use_reentrant=True``, a checkpointing that is not torch's
(``use_unsloth_gc``) and an explicit ``ddp_find_unused_parameters`` see no change.

Upstream: https://github.com/huggingface/transformers/pull/4659
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.unused_parts import is_reentrant, leaves_parts_unused

# Where the rule stands, before transformers 5 and from then on.
_METHODS = ("_wrap_model", "_build_accelerator_args")


def look(code: Code) -> str | None:
    """The rule must be in one of the two methods."""
    if code.class_names("Trainer") is None:
        raise Unrecognised(f"{code.module} has no class Trainer")
    return None if _method(code) else "the Trainer searches for unused parameters whatever the checkpointing"


def _method(code: Code) -> str | None:
    for method in _METHODS:
        function = code.function(f"Trainer.{method}")
        if function is not None and "find_unused" in function and "checkpointing" in function:
            return method
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Switch the search on again in what the Trainer hands to accelerate."""

    def after_wrap(original: Any, self: Any, /, model: Any, *args: Any, **kwargs: Any) -> Any:
        wrapped = original(self, model, *args, **kwargs)
        _search(patch, self, model, getattr(self.accelerator, "ddp_handler", None))
        return wrapped

    def after_build(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
        built = original(self, *args, **kwargs)
        for handler in built.get("kwargs_handlers") or ():
            _search(patch, self, self.model, handler)
        return built

    if hasattr(module.Trainer, "_build_accelerator_args"):
        patch.wrap(module.Trainer, "_build_accelerator_args", after_build)
    else:
        patch.wrap(module.Trainer, "_wrap_model", after_wrap)


def _search(patch: Patch, trainer: Any, model: Any, handler: Any) -> None:
    if getattr(handler, "find_unused_parameters", None) is not False:
        return
    if getattr(trainer.args, "ddp_find_unused_parameters", None) is not None:
        return
    if getattr(trainer.args, "ddp_static_graph", None) or is_reentrant(trainer.args, model):
        return
    if leaves_parts_unused(model):
        patch.replace(handler, "find_unused_parameters", True)
