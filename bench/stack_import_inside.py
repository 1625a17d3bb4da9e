"""Imports a stack with vlmpatch, and prints the CPU seconds of it that were spent inside vlmpatch.

``python -m bench.stack_import_inside [MODULE …]``: those are imported first, and counted as the stack's.

Run by ``bench.stack_import`` in a stack's environment. Two runs of one import differ by more than vlmpatch
costs on a machine that others use too; a part of one run is slowed down as the whole is.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import time
from typing import Any

MODULES = ("transformers.trainer", "deepspeed", "peft", "transformers.models.qwen2_vl.modeling_qwen2_vl")


class Meter:
    """CPU seconds inside the functions it was put around, without what they call of others.

    What the clock itself takes is left out: there are thousands of short calls. It is read twice in a row
    before each, since between two imports it is slower than in a loop. A garbage collection is left out too:
    it falls to the code that makes the one object that is too many.
    """

    def __init__(self) -> None:
        self.spent = 0.0
        self._inside = False
        self._began = 0.0  # the collection that runs
        gc.callbacks.append(self._collects)

    def _collects(self, phase: str, info: object) -> None:
        if phase == "start":
            self._began = time.process_time()
        elif self._inside:
            self.spent -= time.process_time() - self._began

    def around(self, owner: Any, name: str, *, ours: bool = True) -> None:
        """Count ``owner.name``; with ``ours=False`` take it out of what is being counted."""
        function = getattr(owner, name)

        def measured(*args: Any, **kwargs: Any) -> Any:
            if self._inside == ours:
                return function(*args, **kwargs)
            before, started = time.process_time(), time.process_time()
            self._inside = ours
            try:
                return function(*args, **kwargs)
            finally:
                spent = (time.process_time() - started) - (started - before)
                self.spent += spent if ours else -spent
                self._inside = not ours

        setattr(owner, name, measured)


def main() -> None:
    """Wake the engine, import the stack, print."""
    for name in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    meter = Meter()
    started = time.process_time()
    import vlmpatch.bootstrap

    vlmpatch.bootstrap.engine()
    meter.spent = time.process_time() - started
    from vlmpatch.imports.finder import Hooks

    meter.around(Hooks, "find_spec")
    meter.around(Hooks, "executed")
    meter.around(Hooks, "_found_by_others", ours=False)
    for name in MODULES:
        importlib.import_module(name)
    used = os.times()
    print("INSIDE", meter.spent, used.user + used.system)


if __name__ == "__main__":
    main()
