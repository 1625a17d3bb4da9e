"""The first small model of a class that trains on something, and what that is."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.lab.made_small.configurations import owned
from tests.lab.made_small.feeds import Inputs, feeds
from tests.lab.made_small.making import is_known, models
from tests.lab.made_small.put_out import value
from tests.lab.made_small.unmade import FORWARDLESS

SEARCH = 10.0  # seconds on a processor after which no other size is tried


def fed(kind: Any, seconds: float = SEARCH) -> tuple[Any, Inputs]:
    """A small model of the class, and something that it takes; ``seconds`` on a processor go into the search.

    Raises:
        Exception: where it takes nothing of what is offered, what became of the first model that could be
            made, or why none could.
    """
    import torch

    if kind.forward is torch.nn.Module.forward:
        raise NotImplementedError(FORWARDLESS)
    until = time.process_time() + seconds
    evaluated: list[tuple[Any, Inputs]] = []  # by what does not train
    errors: list[Exception] = []
    refused: list[Exception] = []
    for own in owned(kind):
        for model in models(kind, own, errors):
            if time.process_time() > until:
                break
            try:
                for inputs in feeds(model):
                    error = refusal(model, inputs, own)
                    if error is None and refusal(model.train(), inputs, own) is None:
                        return model.eval(), inputs
                    if error is None:
                        evaluated.append((model.eval(), inputs))
                    refused.append(error or ValueError("it does not train"))
            except Exception as error:
                refused.append(error)
        if refused:
            break
    if evaluated:
        return evaluated[0]
    raise [*refused, *errors, ValueError("nothing is offered to it")][0]


def whole(kind: Any) -> Any:
    """The class of the same module that has one of ``kind`` in it and trains it, where one can be made."""
    for other in vars(sys.modules[kind.__module__]).values():
        if hasattr(other, "config_class") and other is not kind and _builds(other, kind):
            with contextlib.suppress(Exception):
                model, _ = fed(other, SEARCH / 4)
                parts = [part for part in model.modules() if type(part) is kind]
                if any(weight.grad is not None for part in parts for weight in part.parameters()):
                    return other
    return None


def _builds(other: Any, kind: Any, above: tuple[Any, ...] = ()) -> bool:
    """Whether ``other`` makes one of ``kind``, itself or by what it makes of the same module."""
    if not inspect.isclass(other) or other in above or "__init__" not in vars(other):
        return False
    made = {*re.findall(r"\b(\w+)(?:\(|\._from_config\()", inspect.getsource(other.__init__))}
    beside = [vars(sys.modules[kind.__module__]).get(name) for name in made]
    return kind in beside or any(_builds(each, kind, (*above, other)) for each in beside)


def refusal(model: Any, inputs: Inputs, own: Callable[[], Any]) -> Exception | None:
    """Why the model does not train on ``inputs``; what its configuration lacks is added where it is known."""
    missing: dict[tuple[type, str], Any] = {}
    while True:
        try:
            trains(model, inputs)
            return None
        except Exception as error:
            if not isinstance(error, AttributeError) or not is_known(error, own, missing):
                return error
            setattr(error.obj, error.name or "", missing[type(error.obj), error.name or ""])


def trains(model: Any, inputs: Inputs) -> None:
    """One forward and backward of ``model``."""
    import torch

    torch.manual_seed(0)
    value(model(**inputs)).backward()
    if not any(weight.grad is not None and weight.grad.any() for weight in model.parameters()):
        raise ValueError("every gradient is zero")  # by chance, behind a ReLU
