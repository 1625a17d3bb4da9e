"""``object has no attribute 'ds_grads_remaining'``, or ``self must be a matrix`` with AdaLoRA.

What the user sees: ZeRO-3 ends in the first forward with PEFT's ``modules_to_save``, with torch's
``checkpoint_wrapper``, or with any module that hands names it does not know on to a module inside it and gets
an input that requires grad. With AdaLoRA it ends in the first backward.

Why: DeepSpeed keeps its hooks' state on each module and asks ``hasattr(module, "post_bwd_fn")`` whether a
module has it already. A module that delegates answers for the one inside, which was registered a moment
before: it is left without hooks of its own. Its input is then counted on a module that has not run yet, and
what it reads of weights itself is not gathered for its backward: AdaLoRA's regulariser reads every adapter.

Since DeepSpeed 0.16.5, which asks when it registers instead of at the first forward, until 0.19.3, which
looks in the module's own ``__dict__``. PEFT's wrapper delegates from 0.14.0 on, torch's always did.

The change: the question is asked of the module itself, in DeepSpeed's own file and nowhere else. No module
and no class of the user's is touched, and the names stay free for them.

Upstream: https://github.com/deepspeedai/DeepSpeed/pull/8144,
https://github.com/deepspeedai/DeepSpeed/issues/7203
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

STATE = frozenset({"pre_bwd_fn", "post_bwd_fn", "applied_pre_backward_ref_cnt"})  # what is asked for


def look(code: Code) -> str | None:
    """The module must be asked for what may be another's."""
    if 'hasattr(module, "pre_bwd_fn")' in code.source:
        return None
    return "this ZeRO-3 looks in the module itself"


def apply(patch: Patch, module: ModuleType) -> None:
    """Let the names of that file find this one before Python's own."""

    def own(asked: Any, name: str, /) -> bool:
        return name in asked.__dict__ if name in STATE else hasattr(asked, name)

    patch.replace(module, "hasattr", own)
