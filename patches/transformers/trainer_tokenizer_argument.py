"""``Trainer.__init__() got an unexpected keyword argument 'tokenizer'``, and the same of ``SFTTrainer``.

What the user sees: a script that builds its trainer with ``tokenizer=`` ends there: MiniCPM-V's on
transformers 5, and every script of 2024 for TRL on TRL 0.16 and later, whatever transformers is installed.

Why: the argument became ``processing_class`` in transformers 4.46. Both kept the old name for a while, TRL
for four releases, transformers until 5.0, and with it the attribute ``trainer.tokenizer``.

Since transformers 5.0.0rc0, and TRL 0.16.0.

The change: a ``Trainer``, or a class built on it, whose constructor takes ``processing_class`` and neither
``tokenizer`` nor any other name, takes it under the old name too. A trainer that was built so has
``tokenizer`` where its class has none. Known by the constructor, not by the script: one that takes the old
name itself, by a decorator too, is left alone.

Upstream: https://github.com/huggingface/transformers/pull/32385,
https://github.com/huggingface/cookbook/issues/305, https://github.com/tulerfeng/Video-R1/issues/14
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, signature

OLD, NEW = "tokenizer", "processing_class"


def look(code: Code) -> str | None:
    """The new name must be there."""
    function = code.function("Trainer.__init__")
    return None if function is not None and NEW in function.parameters else f"Trainer takes no {NEW} yet"


def apply(patch: Patch, module: ModuleType) -> None:
    """Teach the constructors of all trainers, those to come included."""

    def renamed(original: Callable[..., None], self: Any, /, *args: Any, **kwargs: Any) -> None:
        old = OLD in kwargs and kwargs.get(NEW) is None
        if old:
            kwargs[NEW] = kwargs.pop(OLD)
            name = type(self).__qualname__
            patch.warn(name, f"{name}({OLD}=...) should say {NEW}=..., and self.{OLD} self.{NEW}.")
        original(self, *args, **kwargs)
        if old and not hasattr(type(self), OLD) and OLD not in vars(self):
            patch.replace(self, OLD, getattr(self, NEW, None))

    def teach(cls: type) -> None:
        if refuses(vars(cls).get("__init__")):
            patch.wrap(cls, "__init__", renamed)

    def after_subclass(original: Callable[..., None], cls: type, /, *args: Any, **kwargs: Any) -> None:
        original(cls, *args, **kwargs)
        if patch.active:
            teach(cls)

    for cls in (module.Trainer, *_subclasses(module.Trainer)):
        teach(cls)
    patch.wrap(module.Trainer, "__init_subclass__", after_subclass)


def refuses(constructor: Any) -> bool:
    """Whether a constructor takes the new name and would fail on the old one."""
    if not isinstance(constructor, FunctionType):
        return False
    try:
        parameters = signature(constructor).parameters
    except (TypeError, ValueError):
        return False  # it cannot be told: left alone
    anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    *decorators, _ = _layers(constructor)
    renames = any(OLD in _texts(decorator) for decorator in decorators)
    return NEW in parameters and OLD not in parameters and not anything and not renames


def _layers(function: Any) -> Iterator[FunctionType]:
    while isinstance(function, FunctionType):
        yield function
        function = getattr(function, "__wrapped__", None)


def _texts(function: FunctionType) -> list[Any]:
    """The texts a decorator's function knows: transformers' ``deprecate_kwarg`` closes over the old name."""
    found: list[Any] = list(function.__code__.co_consts)
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    return [each for each in found if isinstance(each, str)]


def _subclasses(cls: type) -> list[type]:
    children: list[type] = cls.__subclasses__()
    return [found for child in children for found in (child, *_subclasses(child))]
