"""``Must flatten tensors with uniform `requires_grad` when `use_orig_params=False```.

What the user sees: FSDP1 with LoRA, or with a part that is frozen, ends while the model is wrapped.

Why: without ``use_orig_params`` the parameters of a unit are flattened into one, which requires a gradient or
does not. That is torch's default and accelerate's; HF Trainer's and ``accelerate launch``'s is ``True``, and
configurations that were written for full training say ``False``. A policy that gives every trained leaf a
unit of its own, as PEFT's does, works as it is.

In every torch with ``use_orig_params``, 2.0 to 2.15.

The change: before the model is wrapped, its policy is asked, once, which modules are units. Where one of
these has both kinds of parameters, ``use_orig_params`` is true, and a warning says what that costs. What
works as it was said stays as it is.

Upstream: https://github.com/huggingface/peft/issues/1702, https://github.com/pytorch/pytorch/pull/98221
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

CLASS = "FullyShardedDataParallel"
MODULE, POLICY = Argument(0, "module"), Argument(4, "auto_wrap_policy")
RUN = "_run_policy"  # of the policies that name all units at once
ORIGINAL = Argument(13, "use_orig_params")
IGNORED_MODULES, IGNORED = Argument(7, "ignored_modules"), Argument(14, "ignored_states")
WARNING = (
    "a unit of FSDP has trained and frozen parameters, which use_orig_params=False cannot flatten together; "
    "it is use_orig_params=True here. A frozen parameter then has room for a gradient: wrap what is trained "
    "by itself where memory is short."
)


def look(code: Code) -> str | None:
    """It must take ``use_orig_params``."""
    function = code.function(f"{CLASS}.__init__")
    if function is None or ORIGINAL.name not in function.parameters:
        raise Unrecognised(f"there is no {ORIGINAL.name}")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Decide before anything is flattened."""
    wrapper = getattr(module, CLASS)

    def __init__(original: Callable[..., None], self: Any, /, *args: Any, **kwargs: Any) -> None:
        module = MODULE.of(args, kwargs)
        if module is None or ORIGINAL.of(args, kwargs) or not _may_be_mixed(wrapper, module):
            return original(self, *args, **kwargs)
        if isinstance(ignored := IGNORED.of(args, kwargs), Iterator):  # it can be asked once
            args, kwargs = IGNORED.replaced(args, kwargs, [*ignored])
        if (policy := POLICY.of(args, kwargs)) is not None:
            args, kwargs = POLICY.replaced(args, kwargs, asked_once(policy))
        if _must(wrapper, module, args, kwargs):
            patch.warn("mixed", WARNING)
            args, kwargs = ORIGINAL.replaced(args, kwargs, True)
        return original(self, *args, **kwargs)

    patch.wrap(wrapper, "__init__", __init__)


def _may_be_mixed(wrapper: Any, module: Any) -> bool:
    by_hand = any(isinstance(part, wrapper) for part in module.modules())
    return by_hand or len({p.requires_grad for p in module.parameters()}) > 1


def asked_once(policy: Any) -> Any:
    """A policy like ``policy``, which may speak, count or remember, that asks it once and answers twice."""
    if not hasattr(type(policy), RUN):
        return Answers(policy)
    twin = copy.copy(policy)
    setattr(twin, RUN, Units(getattr(policy, RUN)))
    return twin


class Answers:
    """Of a policy that is called with one module after another, in the same order each time."""

    def __init__(self, policy: Callable[..., bool]) -> None:
        self._policy = policy
        self._given: deque[tuple[Any, bool]] = deque()
        self._again = False

    def repeat(self) -> None:
        """From now on say what was said."""
        self._again = True

    def __call__(self, *args: Any, **kwargs: Any) -> bool:
        """What ``policy`` says of a module."""
        asked = (args, kwargs)
        if self._again and self._given and self._given[0][0] == asked:
            return self._given.popleft()[1]
        answer = self._policy(*args, **kwargs)
        if not self._again:
            self._given.append((asked, answer))
        return answer


class Units:
    """Of a policy that names all units at once, each with options that it adds to those of the root."""

    def __init__(self, run: Callable[..., dict[Any, dict[str, Any]]]) -> None:
        self._run = run
        self._found: dict[Any, dict[str, Any]] | None = None

    def __call__(self, module: Any, ignored: Any, options: dict[str, Any]) -> dict[Any, dict[str, Any]]:
        """What ``policy`` says of ``module`` and all inside it."""
        if self._found is None:
            self._found = self._run(module, ignored, {})
        return {unit: {**options, **own} for unit, own in self._found.items()}


def _must(wrapper: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a unit has both kinds of parameters, or is around one that had."""
    inner = [part for part in module.modules() if isinstance(part, wrapper)]
    if inner:  # wrapped by hand: the parts are to be of one kind
        return any(part._use_orig_params for part in inner)
    ignored_modules, ignored = _ignored(args, kwargs)
    seen = set(ignored)
    for unit in _units(module, POLICY.of(args, kwargs), ignored_modules):
        own = {id(p): p.requires_grad for p in unit.parameters() if id(p) not in seen}
        if len({*own.values()}) > 1:
            return True
        seen |= own.keys()
    return False


def _ignored(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[set[Any], set[int]]:
    """Modules that are not looked into, and the parameters that belong to no unit."""
    said = [*(IGNORED_MODULES.of(args, kwargs) or ()), *(IGNORED.of(args, kwargs) or ())]
    modules = {inner for each in said if hasattr(each, "modules") for inner in each.modules()}
    parameters = {id(p) for each in modules for p in each.parameters()}
    return modules, parameters | {id(each) for each in said if not hasattr(each, "modules")}


def _units(module: Any, policy: Any, ignored: set[Any]) -> Iterator[Any]:
    """What will be wrapped, the inner before the outer; ``module`` itself is the last."""
    from torch.distributed.fsdp import wrap

    found: list[Any] = []

    def note(unit: Any, **kwargs: Any) -> Any:
        found.append(unit)
        return unit

    if hasattr(type(policy), RUN):
        found = [*reversed(policy._run_policy(module, ignored, {}))]
    elif policy is not None:
        wrap._recursive_wrap(
            module=module,
            auto_wrap_policy=policy,
            wrapper_cls=note,
            ignored_modules=ignored,
            ignored_params=set(),
            only_wrap_children=True,
        )
        policy.repeat()
    yield from (unit for unit in found if unit is not module)
    yield module
