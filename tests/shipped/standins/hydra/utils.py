"""``instantiate``, of settings whose parts are no settings themselves."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any


def instantiate(settings: Mapping[str, Any], *arguments: Any, _partial_: bool = False, **more: Any) -> Any:
    """Call what ``_target_`` names with the rest, or hand it back to be called."""
    module, _, name = settings["_target_"].rpartition(".")
    rest = {key: value for key, value in settings.items() if key != "_target_"}
    made = functools.partial(getattr(importlib.import_module(module), name), *arguments, **{**rest, **more})
    return made if _partial_ else made()
