"""A rank whose batch has no sound reads other weights of MiniCPM-o than one whose batch has one.

What the user sees: under ZeRO-3, samples with sound beside samples without: a hang on NCCL, ``collective
mismatch`` on gloo. With the model's code of January 2025, under every engine and in one process:
``IndexError: list index out of range`` in ``get_omni_embedding`` for the first batch without a sound.

Why: without a sound today's ``get_audio_embedding`` runs its tower on silence, so that every rank has the
same gradients. For device and dtype it asks ``apm.embed_positions.weight`` first then, and where there is a
sound ``apm.conv1.weight``: under ZeRO-3 reading a weight outside of its module gathers it, so that one rank
gathers one while another gathers the other. January's code has no silence, and takes the first of an empty
list.

The change: in training, where there is no sound, and ZeRO-3 holds the tower or the code has no silence of its
own, ``get_audio_embedding`` is called with a sound of zeros, and what comes out takes silence's place: it
reads and runs what it does for any other sound. In an evaluation, where ZeRO-3 or FSDP gathers the tower and
some rank hears something, the others run it on zeros and drop what comes out; that costs an all-reduce of
one integer a forward. Left alone: DDP, ZeRO-1 and 2 and FSDP where the code has silence of its own, which are
right; a caller who says ``dummy=False``; streaming; code that asks whether there are
features before it adds them.

Upstream: https://github.com/hiyouga/LlamaFactory/issues/6819
"""

from __future__ import annotations

import ast
import inspect
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch

from .._shared.distributed import largest, world
from .._shared.minicpmv import NOT_THE_MODEL, methods, model_class, model_name
from .._shared.training_group import ZERO3, sharding, waiting_groups

METHOD = "get_audio_embedding"
DATA, DUMMY = Argument(0, "data"), Argument(2, "dummy")
_ADDED = "audio_embeddings[0].mean() * 0"
_FRAMES = 100  # of silence, as in the model's own


def look(code: Code) -> str | None:
    """Where a batch has no sound, training must add zero times the first of its sounds' features."""
    name = model_name(code)
    if name is None:
        return NOT_THE_MODEL
    if code.function(f"{name}.{METHOD}") is None:
        return f"{name} hears nothing"
    if not all(part in code.source for part in ("self.apm(", "self.audio_projection_layer(", _ADDED)):
        return f"{name} runs another tower for sounds"
    if not any(
        _adds_silence(method) for cls, method in methods(code, "get_omni_embedding") if cls.name == name
    ):
        return f"{name} sees to batches without sounds itself"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Have a batch without a sound go the way of one that has one."""
    cls = model_class(module)
    has_silence = "training" in inspect.unwrap(getattr(cls, METHOD)).__code__.co_names

    def as_heard(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
        data = DATA.of(args, kwargs)
        heard = len(data.get("audio_features", ())) > 0
        parts = [self.apm, self.audio_projection_layer]

        def on_silence() -> Any:
            given, named = DATA.replaced(args, kwargs, _silence(self, data))
            return original(self, *given, **named)

        if self.training:
            own = heard or not DUMMY.of(args, kwargs, True) or (has_silence and sharding(parts) != ZERO3)
            # Of each row the features of each sound, in place of the features of silence.
            return original(self, *args, **kwargs) if own else on_silence()[0]
        if world() > 1 and (groups := waiting_groups(parts)):
            somewhere = largest(int(heard), groups, data["input_ids"].device)
            if somewhere and not heard:
                on_silence()
        return original(self, *args, **kwargs)

    patch.wrap(cls, METHOD, as_heard)


def _silence(model: Any, data: Any) -> dict[str, Any]:
    """What ``data`` would say of one sound of zeros."""
    import torch

    device = data["input_ids"].device
    dtype = next(model.apm.parameters()).dtype
    sound = torch.zeros((1, model.apm.config.num_mel_bins, _FRAMES), device=device, dtype=dtype)
    return {"audio_features": sound, "audio_feature_lens": [torch.tensor([_FRAMES], device=device)]}


def _adds_silence(method: ast.FunctionDef) -> bool:
    """Whether ``method`` does so in training without asking whether there are any."""
    branches = [node for node in ast.walk(method) if isinstance(node, ast.If)]
    bodies = [node.body for node in branches if ast.unparse(node.test) == "self.training"]
    statements = [inner for body in bodies for statement in body for inner in ast.walk(statement)]
    asks = any(isinstance(node, (ast.If, ast.IfExp, ast.Try)) for node in statements)
    return not asks and any(_ADDED in ast.unparse(node) for node in statements)
