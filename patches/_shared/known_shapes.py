"""Looks at targets of which every release is known: the digests of the functions a patch relies on."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from vlmpatch.api import Code, Unrecognised


def recognise(code: Code, shapes: Mapping[str, Collection[str]]) -> None:
    """Every function of ``shapes`` must have one of the digests listed for it.

    Raises:
        Unrecognised: one is missing or has changed.
    """
    for name, known in shapes.items():
        function = code.function(name)
        if function is None:
            raise Unrecognised(f"{code.path} has no {name}")
        if function.digest not in known:
            raise Unrecognised(
                f"{name} in {code.path} is not as any known release has it ({function.digest})"
            )


def sibling(code: Code, name: str) -> Code:
    """The module ``name`` in the same folder as ``code``.

    Raises:
        Unrecognised: it cannot be read.
    """
    path = os.path.join(os.path.dirname(code.path), f"{name}.py")
    try:
        with open(path, encoding="utf-8") as handle:
            return Code(name, path, handle.read())
    except OSError as error:
        raise Unrecognised(f"{path} cannot be read: {error}") from error
