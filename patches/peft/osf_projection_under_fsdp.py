"""Nothing is printed: under FSDP the gradients of an OSF adapter are not projected.

What the user sees: nothing. OSF (``OSFConfig``) is there so that what a model has learnt before is left
alone: its gradients are kept orthogonal to the large singular directions of each weight. Under FSDP1 and
FSDP2 it trains with the gradients as they are, at losses that fall all the same, and what it is not to touch
is overwritten.

Why: PEFT hangs the projection on the parameters as it makes the adapter, by ``register_hook``. FSDP has
other tensors in their place: ``fully_shard`` puts a ``DTensor`` there and, in the forward, a whole parameter
of its own, FSDP1 views of its flat parameter. No gradient ever comes to those that have the hooks.

Since PEFT 0.18, which brought OSF; 0.21.2 included.

The change: where a forward finds the tensors that it is about to use without the hooks, PEFT's own method
hangs them there, too; in the dtype of what is projected with, for FSDP may compute in another. The projection
is linear, so that it is the same before gradients are averaged over ranks, added up or cut into shards. A
copy of an adapter (``copy.deepcopy``) lacks the hooks as well, and gets them. Left alone: every other place,
where a forward finds the hooks; a layer of which they were taken off (``_detach_hooks``); what is compiled.

Upstream: no report was found.
https://github.com/huggingface/peft/blob/v0.21.2/src/peft/tuners/osf/layer.py
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.compiling import compiling

ATTACH = "OSFLayer._attach_hooks"
LAYER = "layer"  # what a hook of PEFT's was told of the layer that it belongs to
PROJECTED = ("U_low", "V_low")
KEPT = "_osf_"  # the buffers that are projected with
NEEDED = {
    ATTACH: ('["U_low"].register_hook(', '["V_low"].register_hook(', f"{LAYER}=self)"),
    "Linear.forward": ("self.active_adapters", "self.osf_svd_params"),
}


def look(code: Code) -> str | None:
    """The hooks must be hung on the parameters, by a method of their own, as the adapter is made."""
    if code.function(ATTACH) is None and "register_hook(" not in code.source:
        return "this OSF hangs no hooks on its parameters"
    for name, words in NEEDED.items():
        if any(word not in (code.function(name) or "") for word in words):
            raise Unrecognised(f"{code.module} has no {name} as any known release has it")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Hang the projection on the tensors that a forward uses."""
    import torch

    tracing = compiling()

    def forward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if self.hook_handles and torch.is_grad_enabled() and not tracing():
            for adapter in self.active_adapters[:1]:  # OSF adds no other
                if any(lacks(tensor, self) for tensor in projected(self, adapter)):
                    hang(self, adapter)
        return original(self, *args, **kwargs)

    patch.wrap(module.Linear, "forward", forward)


def projected(layer: Any, adapter: Any) -> list[Any]:
    """The tensors of an adapter whose gradients are projected, where they get any."""
    if adapter not in layer.osf_svd_params:
        return []
    parts = layer.osf_svd_params[adapter]
    return [parts[name] for name in PROJECTED if parts[name].requires_grad]


def lacks(tensor: Any, layer: Any) -> bool:
    """Whether no hook of ``layer`` is on ``tensor``."""
    hooks = (tensor._backward_hooks or {}).values()
    return not any(getattr(hook, "keywords", {}).get(LAYER) is layer for hook in hooks)


def hang(layer: Any, adapter: Any) -> None:
    """PEFT's hooks, on the tensors that are there now.

    The layer keeps no handles of them: under FSDP1 there are other tensors in every forward.
    """
    before = len(layer.hook_handles)
    layer._attach_hooks(adapter)
    dtype = next(buffer.dtype for name, buffer in layer.named_buffers() if name.startswith(KEPT))
    for handle in layer.hook_handles[before:]:
        hooks = handle.hooks_dict_ref()
        hooks[handle.id] = functools.partial(in_dtype, hooks[handle.id], dtype, layer=layer)
    del layer.hook_handles[before:]


def in_dtype(hook: Callable[[Any], Any], dtype: Any, gradient: Any, *, layer: Any) -> Any:
    """What a hook of ``layer`` makes of a gradient, computed in ``dtype``."""
    return hook(gradient.to(dtype)).to(gradient.dtype)
