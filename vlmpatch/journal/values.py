"""A value that is the run's own: a gradient, a counter, what is in a bucket.

The code that keeps it writes it in every step, so that there is nothing to undo: what a patch has put there
is gone with the next step, with or without the patch.
"""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import Any

from vlmpatch.journal.locations import path


def assign(owner: Any, name: str, value: Any) -> None:
    """``owner.name = value`` where the code of ``owner`` writes one value after another.

    Args:
        owner: an object of a run.
        name: an attribute that it has.
        value: no code.

    Raises:
        AttributeError: there is no such attribute. What is to be kept of a run's object and is not its own
            belongs into a ``WeakKeyDictionary``.
        TypeError: ``owner`` is a module, a class or a function, or code lies there, or would. That is a
            change, which is the journal's: ``Patch.replace``, ``Patch.wrap``, ``Patch.swapped``.
    """
    code = isinstance(owner, (ModuleType, type, FunctionType))
    if code or callable(value) or callable(getattr(owner, name)):
        raise TypeError(f"{path(owner, name)} is code: a change, which is the journal's")
    setattr(owner, name, value)
