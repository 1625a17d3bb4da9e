"""``Expected to mark a variable ready only once``: checkpointing under DDP.

What the user sees: training with ``enable_checkpointing()`` ends in the first backward under DDP.

Why: the method chooses the reentrant variant where nothing is said, and DDP does not go with that.

Since acme-vl 1.0; no release has ended it.

The change: the default of ``use_reentrant`` is False. Who writes True is obeyed.

Upstream: https://example.org/acme/acme-vl/issues/17
"""

from __future__ import annotations

from types import ModuleType

from vlmpatch.api import Code, Patch, Unrecognised

NAME = "AcmeModel.enable_checkpointing"


def look(code: Code) -> str | None:
    """The default is written in the method's head."""
    function = code.function(NAME)
    if function is None or "use_reentrant" not in function.parameters:
        raise Unrecognised(f"{code.module} has no {NAME}(use_reentrant)")
    return None if function.defaults.get("use_reentrant") == "True" else "the default is not reentrant"


def apply(patch: Patch, module: ModuleType) -> None:
    """Change the default, in the function itself: every holder of the method sees it."""
    patch.set_default(module.AcmeModel.enable_checkpointing, "use_reentrant", False)
