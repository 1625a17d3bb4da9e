"""Remote code: the modules transformers loads from a model's own folder.

The entry module of a model with ``trust_remote_code`` never passes ``sys.meta_path``; transformers
executes it in ``dynamic_module_utils.get_class_in_module``, again whenever a file of it has changed
(on 4.41-4.44 at every load), and each execution makes new classes. So that function is watched, and
an execution is known by the class it returns being a new one. What the entry module imports goes
through the ordinary hooks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

from vlmpatch.catalog.index import DOOR
from vlmpatch.imports.finder import Hooks
from vlmpatch.journal.journal import Journal


def watch_remote_code(hooks: Hooks, journal: Journal, owner: str, then: Callable[[], None]) -> None:
    """Have ``hooks`` told of every execution of a remote entry module.

    Args:
        hooks: who is told.
        journal: records the change.
        owner: the name under which it does.
        then: called once it is made; whether anybody wants it now is the caller's to know.
    """
    latest: WeakValueDictionary[tuple[str, str], type] = WeakValueDictionary()

    def after_load(original: Any, /, *args: Any, **kwargs: Any) -> Any:
        cls = original(*args, **kwargs)
        module = sys.modules.get(getattr(cls, "__module__", ""))
        if module is not None and isinstance(cls, type):
            key = (module.__name__, cls.__qualname__)
            if latest.get(key) is not cls:
                latest[key] = cls
                hooks.executed(module.__name__)
        return cls

    def on_door(module: ModuleType) -> None:
        if hasattr(module, "get_class_in_module"):
            journal.wrap(owner, module, "get_class_in_module", after_load)
            then()

    hooks.watch(DOOR, on_door)
