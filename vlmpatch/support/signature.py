"""What a function can be called with, whatever its annotations name."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

if sys.version_info >= (3, 14):
    from annotationlib import Format

    _signature = functools.partial(inspect.signature, annotation_format=Format.FORWARDREF)
else:
    _signature = inspect.signature


def signature(function: Callable[..., Any], follow_wrapped: bool = True) -> inspect.Signature:
    """``inspect.signature``, also of a function whose annotations cannot be evaluated.

    From Python 3.14 on (PEP 649) an annotation is evaluated when it is asked for: one that names what was
    imported for type checkers alone is no error in the program, and would be one here.

    Args:
        function: any callable.
        follow_wrapped: whether that of what it wraps is meant.

    Raises:
        TypeError: it is no callable, or of a kind that has none.
        ValueError: it has none that can be read.
    """
    return _signature(function, follow_wrapped=follow_wrapped)
