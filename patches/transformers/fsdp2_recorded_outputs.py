"""Under FSDP2 a base model, or a tower, that was sharded itself records no hidden states, no router logits.

What the user sees: ``outputs.hidden_states`` and ``outputs.attentions`` are None, whatever was asked for:
``'NoneType' object is not subscriptable`` in LLaVA's tower, ``'int' object has no attribute 'to'`` in a
mixture of experts with ``output_router_logits=True``. So it is where ``fully_shard`` was called for the very
model that records: an ``AutoModel`` that accelerate shards, a tower or language model by the user's own call.

Why: what a model can record is kept by the name of its class, as the model is built, and asked for by the
name of its class in the forward. ``fully_shard`` gives the model another class, made of both.

Since transformers 4.54; in every torch with FSDP2.

The change: a class that ``fully_shard`` makes can record what the one that it is made of can. Where no
model is sharded nothing is changed.

Upstream: https://github.com/huggingface/transformers/pull/39120 (which brought it)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

REGISTRY, CLASS = "_CAN_RECORD_REGISTRY", "_CanRecordRegistry"
BY_NAME = f"{REGISTRY}[str(self.__class__)] = self._can_record_outputs"  # until 5.19
BY_MODEL = f"{REGISTRY}[self] = self._can_record_outputs"  # since; the registry takes the name itself
SHARDED = "FSDPModule"  # of torch: a base of classes that fully_shard makes


def look(code: Code) -> str | None:
    """What a model records must be kept by the name of its class, in one of two ways."""
    if code.module == "transformers.modeling_utils":
        built = code.function("PreTrainedModel.__init__")
        if built is not None and BY_NAME in built:
            return None
        if built is not None and (BY_MODEL in built or REGISTRY not in built):
            return "what a model records is not kept by a name here"
    else:
        if (found := code.function(f"{CLASS}.get")) is not None and "str(model.__class__)" in found:
            return None
        if REGISTRY in code.names and code.class_names(CLASS) is None:
            return "the model takes the name itself"
    raise Unrecognised(f"{code.module} keeps what a model records in another way than it did")


def apply(patch: Patch, module: ModuleType) -> None:
    """Have classes that ``fully_shard`` makes found by those that they are made of."""
    if module.__name__ == "transformers.modeling_utils":
        registry = getattr(module, REGISTRY)

        def made(original: Callable[..., None], cls: type, /, **kwargs: Any) -> None:
            original(cls, **kwargs)
            for base in _bases(cls):
                if registry.get(str(base)):
                    patch.set_item(registry, str(cls), registry[str(base)])
                    return

        patch.wrap(module.PreTrainedModel, "__init_subclass__", made)
        return

    def get(original: Callable[..., Any], self: Any, /, model: Any) -> Any:
        found = original(self, model)
        if not found:
            for base in _bases(type(model)):
                if recorded := dict.get(self, str(base)):
                    return recorded
        return found

    patch.wrap(getattr(module, CLASS), "get", get)


def _bases(cls: type) -> Iterator[type]:
    """Those of a class that ``fully_shard`` has made, the nearest first; of others none."""
    if any(base.__name__ == SHARDED for base in cls.__bases__):
        yield from cls.__mro__[1:]
