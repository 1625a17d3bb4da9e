"""What callers of ``gradient_checkpointing_enable`` said, and what is filled in for them."""

from __future__ import annotations

from typing import Any


def say_non_reentrant(
    original: Any, self: Any, gradient_checkpointing_kwargs: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Call ``original`` with ``use_reentrant=False`` unless the caller named ``use_reentrant``."""
    said = gradient_checkpointing_kwargs or {}
    filled = {"use_reentrant": False, **said} if isinstance(said, dict) else said
    if args:
        return original(self, filled, *args, **kwargs)
    return original(self, gradient_checkpointing_kwargs=filled, **kwargs)


def insists_on_reentrant(checkpoint_function: Any) -> bool:
    """Whether the function handed to the model is ``partial(checkpoint, use_reentrant=True)``."""
    return getattr(checkpoint_function, "keywords", {}).get("use_reentrant") is True
