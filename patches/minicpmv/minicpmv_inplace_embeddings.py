"""``a view of a leaf Variable that requires grad is being used in an in-place operation``.

Why: MiniCPM-V writes image features into the text embeddings with ``scatter_``. From 5.0, transformers
makes the embeddings' output require grad whenever checkpointing is on; with a frozen language model
that output is a leaf, and autograd forbids writing into a leaf.

Since transformers 5.0.0rc0; before, when ``enable_input_require_grads()`` is called by the user.

The change: during ``get_vllm_embedding`` a leaf that leaves the embedding layer is copied.

Upstream: https://github.com/OpenBMB/MiniCPM-V/issues/730
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

from ._minicpmv import NOT_THE_MODEL, has_model


def look(code: Code) -> str | None:
    """The class must write into the embeddings it just looked up."""
    if not has_model(code):
        return NOT_THE_MODEL
    function = code.function("MiniCPMV.get_vllm_embedding")
    if function is None:
        return "MiniCPMV has no get_vllm_embedding"
    if ".scatter_(" not in function:
        return "get_vllm_embedding writes nothing in place"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Hand ``get_vllm_embedding`` embeddings it may write into."""

    def with_writable_embeddings(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        # Registered last, so that it sees what the hook of enable_input_require_grads() made.
        handle = self.get_input_embeddings().register_forward_hook(_writable)
        try:
            return original(self, *args, **kwargs)
        finally:
            handle.remove()

    patch.wrap(module.MiniCPMV, "get_vllm_embedding", with_writable_embeddings)


def _writable(_module: Any, _inputs: Any, output: Any) -> Any:
    return output.clone() if output.is_leaf and output.requires_grad else None
