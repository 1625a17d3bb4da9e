"""``a view of a leaf Variable that requires grad is being used in an in-place operation``.

What the user sees: this, or ``a leaf Variable that requires grad is being used in an in-place operation``,
in LoRA with frozen embeddings: MiniCPM-V, MiniCPM-o, InternVL, VILA, ms-swift's templates, 2U1's scripts.

Why: ``enable_input_require_grads()`` lets the embeddings' output require grad with a forward hook. With
frozen embeddings that output is then a leaf, and autograd forbids what those models and templates do next:
writing the image features into it (``scatter_``, ``+=``, ``index_copy_``). transformers 5 calls it whenever
checkpointing is on, LLaMA-Factory, peft's ``prepare_model_for_kbit_training``, TRL and LLaVA's scripts do so
before, several of them with a hook of their own of the same name.

In every transformers looked at, 4.45 to 5.23.

The change: where a hook of that name and with nothing else in it is registered, its output is handed on as a
copy of the leaf: it requires grad and may be written into, and code that looks for its ``grad`` afterwards,
as saliency maps do, finds it. An output that is no leaf is not copied.

Upstream: https://github.com/OpenBMB/MiniCPM-V/issues/730, https://github.com/modelscope/ms-swift/issues/6753
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.compiling import compiling

HOOK = Argument(0, "hook")
NAMES = ("make_inputs_require_grads", "make_inputs_require_grad")


def look(code: Code) -> str | None:
    """Hooks must be registered the way we know."""
    function = code.function("Module.register_forward_hook")
    if function is None or function.parameters[:2] != ("self", "hook"):
        raise Unrecognised("torch's Module.register_forward_hook takes no hook")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Hand on what may be written into, wherever inputs are made to require grad."""

    def register(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        hook = HOOK.of(args, kwargs)
        if _lets_require_grad(hook):
            args, kwargs = HOOK.replaced(args, kwargs, _writable(patch, hook))
        return original(self, *args, **kwargs)

    patch.wrap(module.Module, "register_forward_hook", register)


def _lets_require_grad(hook: Any) -> bool:
    """Whether ``hook`` is one of those: by its name, and because it does nothing else."""
    if not isinstance(hook, FunctionType) or hook.__name__ not in NAMES:
        return False
    return hook.__code__.co_names == ("requires_grad_",) and hook.__code__.co_argcount == 3


def _writable(patch: Patch, hook: FunctionType) -> Callable[..., Any]:
    @functools.wraps(hook)
    def then_copy(module: Any, args: Any, output: Any) -> Any:
        hook(module, args, output)
        if not (patch.active and _is_leaf(output)):
            return None
        copy = output.clone()
        copy.retain_grad()
        return copy

    return _Pickled(hook, then_copy)


class _Pickled:
    """``call`` in the place of a ``hook``, which a model that is pickled has; equal to it."""

    def __init__(self, hook: FunctionType, call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, hook)
        self._hook, self._call = hook, call

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._hook

    def __hash__(self) -> int:
        return hash(self._hook)

    def __call__(self, module: Any, args: Any, output: Any) -> Any:
        return self._call(module, args, output)

    def __deepcopy__(self, memo: Any) -> _Pickled:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (self._hook,)


def _is_leaf(output: Any) -> bool:
    import torch

    if not isinstance(output, torch.Tensor):  # an object of the script's own may know requires_grad_ alone
        return False
    if not torch.is_grad_enabled():
        return False
    if compiling()():
        return bool(output.requires_grad and output.is_leaf)
    with torch._C.DisableTorchFunction():  # a mode of a script's may count what it sees
        return bool(output.requires_grad and output.is_leaf)
