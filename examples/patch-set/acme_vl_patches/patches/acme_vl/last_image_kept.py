"""Nothing: the images at the end of a sample are not trained on.

What the user sees: no error; a model that has learnt nothing of the last image of a long sample.

Why: ``groups`` counts whole groups only, so what is left over at the end belongs to none.

Since acme-vl 1.0, until 1.2.

The change: what is left over makes a smaller group, which the tower takes as it takes any other.

Upstream: https://example.org/acme/acme-vl/issues/41
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from vlmpatch.api import Argument, Code, Patch, Unrecognised

NAME = "groups"
IMAGES, SIZE = Argument(0, "images"), Argument(1, "size")


def look(code: Code) -> str | None:
    """The range of the starts ends before the last group."""
    function = code.function(NAME)
    if function is None or function.parameters != ("images", "size"):
        raise Unrecognised(f"{code.module} has no {NAME}(images, size)")
    return None if "len(images) - size + 1" in function else f"{NAME} keeps what is left over"


def apply(patch: Patch, module: ModuleType) -> None:
    """Add the group that is missing."""

    def whole(
        original: Callable[..., list[list[str]]], /, *args: object, **kwargs: object
    ) -> list[list[str]]:
        found = original(*args, **kwargs)
        images, size = IMAGES.of(args, kwargs), SIZE.of(args, kwargs)
        rest = images[len(images) - len(images) % size :]
        return [*found, rest] if rest else found

    patch.wrap(module, NAME, whole)
