"""ms-swift replaces torch's ``checkpoint`` for the whole process and ignores what callers pass.

What the user sees: ``Expected to mark a variable ready only once`` (ms-swift 3.0-3.5, DDP), ``The
parameter N has already been reduced`` (any 3.x or 4.x, ZeRO-1/2), on a command line that says nothing
of checkpointing; and ``use_reentrant=False`` written into a model or script without any effect.

Why: ``_fix_gradient_checkpointing`` sets ``torch.utils.checkpoint.checkpoint`` to a function that
calls the true one with a value of its own: True on every engine in 3.0-3.5.3, True under DeepSpeed
and FSDP and False on DDP from 3.6.0 on. Only ``--gradient_checkpointing_kwargs`` changes it.

Since ms-swift 3.0.0; in 4.6.0 still.

The change: the method no longer installs the override. What the user passed on the command line
becomes torch's default for callers who say nothing, and callers who say something are obeyed. An
override installed before vlmpatch was imported is taken out wherever a module holds it.

Upstream: https://github.com/modelscope/ms-swift/pull/2625 (brought the override),
https://github.com/modelscope/ms-swift/issues/3446, https://github.com/modelscope/ms-swift/issues/3128
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

_METHOD = "_fix_gradient_checkpointing"
_CLASSES = ("SwiftArgumentsMixin", "TrainArgumentsMixin", "SwiftMixin")  # 3.0, 3.x, from 3.6 on


def look(code: Code) -> str | None:
    """The bug is here where one of these classes has the method and it drops the caller's choice."""
    for name in _CLASSES:
        function = code.function(f"{name}.{_METHOD}")
        if function is not None and "use_reentrant=use_reentrant_" in function:
            return None
    return f"{code.module} installs no override of torch.utils.checkpoint.checkpoint"


def apply(patch: Patch, module: ModuleType) -> None:
    """Keep the override from being installed, and take it out where it is installed already."""

    def leave_torch_alone(original: Any, self: Any, /) -> None:
        import torch.utils.checkpoint

        said = _said(self)
        if said is not None:
            patch.set_default(torch.utils.checkpoint.checkpoint, "use_reentrant", said)

    for name in _CLASSES:
        if _METHOD in vars(getattr(module, name, object)):
            patch.wrap(getattr(module, name), _METHOD, leave_torch_alone)
    _take_out(patch)


def _said(holder: Any) -> bool | None:
    """What the user passed: on the arguments themselves (3.0-3.5) or on the trainer's ``args``."""
    arguments = getattr(holder, "args", holder)
    passed = getattr(arguments, "gradient_checkpointing_kwargs", None)
    said = passed.get("use_reentrant") if isinstance(passed, dict) else None
    return said if isinstance(said, bool) else None


def _take_out(patch: Patch) -> None:
    import torch.utils.checkpoint

    true_one = getattr(torch.utils.checkpoint, "_old_checkpoint", None)
    if true_one is None:
        return
    override = torch.utils.checkpoint.checkpoint
    for holder in list(sys.modules.values()):
        if isinstance(holder, ModuleType) and vars(holder).get("checkpoint") is override:
            patch.replace(holder, "checkpoint", true_one)
