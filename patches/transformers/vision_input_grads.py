"""Under ``use_reentrant=True`` the LoRA weights of the vision tower never receive a gradient.

What the user sees: nothing. The loss falls, and the vision tower's adapters are what they were.

Why: reentrant checkpointing records a segment in the graph only if one of the segment's inputs
requires grad. With a frozen patch embedding the tower's hidden states do not, and the input-grad hook
that transformers registers sits on the text embeddings (4.x), or on what ``get_input_embeddings``
returns, which some towers do not implement (Qwen3-VL on 5.x).

Since transformers 4.47.0, where vision towers began to be checkpointed; towers without input
embeddings are still without in 5.23.

The change: when a model is switched to reentrant checkpointing, each of its innermost pretrained
models (a vision tower, a language model) that has trainable weights gets a forward pre-hook which
lets its first floating-point input require grad. One Python call per tower and forward, none per
layer, and none at all unless the user insists on reentrant. Towers for sounds that do so themselves
(Wav2Vec2 and related ones) are left alone: they want a leaf.

Upstream: https://github.com/huggingface/transformers/pull/34724 (towers checkpointed),
https://github.com/huggingface/peft/issues/2880, https://github.com/huggingface/transformers/pull/41993
(5.x: hooks on every model's input embeddings)
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

from .._shared.checkpoint_kwargs import look_at_sink, on_reentrant

_INPUTS = ("hidden_states", "pixel_values", "inputs_embeds")
_OWN = "_requires_grad"  # by which a feature encoder says that it lets its input require grad


def look(code: Code) -> str | None:
    """The sink through which every model gets its checkpoint function must be as we know it."""
    look_at_sink(code)
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Hook the towers of every model that is switched to reentrant checkpointing."""

    def hook_towers(model: Any) -> None:
        for tower in _innermost_models(model, module.PreTrainedModel):
            patch.hook(tower.register_forward_pre_hook, require_input_grad, with_kwargs=True)

    on_reentrant(patch, module, hook_towers)


def require_input_grad(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Forward pre-hook: let the first floating-point input of a trained tower require grad."""
    import torch

    if not (torch.is_grad_enabled() and module.training):
        return None
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return None
    if any(getattr(part, _OWN, False) is True for part in module.modules()):
        return None
    inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    if any(value.requires_grad for value in inputs):
        return None
    for index, value in enumerate(args):
        if _floating(value):
            return (*args[:index], _with_grad(value), *args[index + 1 :]), kwargs
    for name in _INPUTS:
        if _floating(kwargs.get(name)):
            return args, {**kwargs, name: _with_grad(kwargs[name])}
    return None


def _floating(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _with_grad(tensor: Any) -> Any:
    # A new leaf over the same storage: the caller's tensor stays as it is.
    return tensor.detach().requires_grad_()


def _innermost_models(model: Any, pretrained: type) -> list[Any]:
    models: list[Any] = [module for module in model.modules() if isinstance(module, pretrained)]
    return [
        candidate
        for candidate in models
        if not any(inner is not candidate and isinstance(inner, pretrained) for inner in candidate.modules())
    ]
