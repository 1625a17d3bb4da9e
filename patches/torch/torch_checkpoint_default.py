"""A checkpoint call that does not say ``use_reentrant`` gets the reentrant variant.

What the user sees: ``The parameter N has already been reduced`` (DeepSpeed ZeRO-1/2), ``Expected to
mark a variable ready only once`` (DDP), a bare ``AssertionError`` (ZeRO-3), or no error and ranks that
drift apart.

Why: models that call ``torch.utils.checkpoint.checkpoint(f, x)`` themselves (InternVL's repository
code, timm's ``checkpoint_seq``, older MiniCPM-V), and everybody who passes
``gradient_checkpointing_kwargs={}``, leave the choice to torch. torch warns and takes
``use_reentrant=True``. Reentrant checkpointing runs a nested backward for each checkpointed segment,
so a parameter used in two segments has its gradient hooks fired twice.

Since torch 2.1 (``use_reentrant: Optional[bool] = None``, and True itself in its ``checkpoint_sequential``);
still so in 2.15. torch announced that a missing argument would become an error in 2.9, which did not happen.
From 2.15 on ``checkpoint`` is also a decorator and hands what it was given, the open default too, to
``_checkpoint_impl``, which takes True.

The change: the parameter's default becomes False, in the function object itself. References taken
with ``from torch.utils.checkpoint import checkpoint`` see it, and a call costs nothing more.

What it costs: a block that keeps what it made of its first input (a mask, a scale) trains by torch's default
and ends in ``A different number of tensors was saved`` by ours (F72), for the recomputation does not make it
again. That shows in the backward, when it is too late for the other variant. Make it under
``torch.no_grad()``, which changes no gradient that torch's default has, or pass ``use_reentrant=True``.
A recomputation ends when it has saved what the backward needs: a module's forward hooks behind that are
called in the forward alone. With ``torch.utils.checkpoint.set_checkpoint_early_stop(False)`` around the
forward it runs to its end.

Upstream: https://github.com/pytorch/pytorch/pull/100551 (the warning),
https://github.com/pytorch/pytorch/pull/116710 (kept a warning),
https://github.com/huggingface/pytorch-image-models/pull/2394 (timm's own answer)
"""

from __future__ import annotations

from types import ModuleType

from vlmpatch.api import Code, Function, Patch, Unrecognised

_FUNCTIONS = ("checkpoint", "checkpoint_sequential")
_HELPER = "_checkpoint_impl"  # what takes True for ``checkpoint``, from torch 2.15 on
_TAKES_TRUE = "use_reentrant = True"


def look(code: Code) -> str | None:
    """The bug is here when both functions say True, or leave ``use_reentrant`` open and then take True."""
    for name in _FUNCTIONS:
        function = code.function(name)
        if function is None or "use_reentrant" not in function.defaults:
            raise Unrecognised(f"{code.module}.{name} has no default for use_reentrant")
        default = function.defaults["use_reentrant"]
        if default == "False":
            return f"{code.module}.{name} is non-reentrant by default"
        open_default = default == "None" and _takes_true(code, function)
        if default != "True" and not open_default:
            raise Unrecognised(f"{code.module}.{name} treats a missing use_reentrant in a way unknown to us")
    return None


def _takes_true(code: Code, function: Function) -> bool:
    """Whether ``function`` takes True for None, itself or in the helper it hands the argument to."""
    if _TAKES_TRUE in function:
        return True
    helper = code.function(_HELPER) if f"{_HELPER}(" in function else None
    return helper is not None and _TAKES_TRUE in helper and "use_reentrant=use_reentrant" in function


def apply(patch: Patch, module: ModuleType) -> None:
    """Make non-reentrant the default of both functions."""
    for name in _FUNCTIONS:
        patch.set_default(getattr(module, name), "use_reentrant", False)
