"""A model of a small configuration, and what the configuration turns out to lack."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from tests.lab.made_small import singles
from tests.lab.made_small.configurations import configurations
from tests.lab.made_small.sizes import HYBRID, LATENT, MORE, NATURAL, UNNAMED

LARGEST = 70_000_000  # parameters of a model that is still small: some have widths that nothing names
REPAIRS = 8  # of one configuration


def models(kind: Any, own: Callable[[], Any], errors: list[Exception]) -> Iterator[Any]:
    """Small models of the class with a configuration like ``own``; ``errors`` gets why others are none."""
    tried: list[Any] = []
    for configuration in configurations(own, singles.sizes(kind)):
        missing: dict[tuple[type, str], Any] = {}
        for _ in range(REPAIRS):
            again = functools.partial(_amended, configuration, missing)
            try:
                if not missing and again().to_dict() in tried:
                    break
                tried.append(again().to_dict())
                model = made(kind, again).eval()
            except Exception as error:
                errors.append(error)
                if not isinstance(error, AttributeError) or not is_known(error, own, missing):
                    break
            else:
                yield model
                break


def is_known(error: AttributeError, own: Callable[[], Any], missing: dict[tuple[type, str], Any]) -> bool:
    """Whether what a configuration does not have is known from elsewhere; ``missing`` has it then.

    A checkpoint's configuration says more than the class does, and a part is asked for what the whole has.
    """
    name = error.name or ""
    key = (type(error.obj), name)
    if not hasattr(error.obj, "to_dict") or key in missing:
        return False
    found = [{**NATURAL, **MORE, **LATENT, **HYBRID, **UNNAMED}, *map(vars, _parts(own()))]
    known = [each[name] for each in found if each.get(name) is not None]
    if known:
        missing[key] = known[0]
    return bool(known)


def _amended(configuration: Callable[[], Any], missing: dict[tuple[type, str], Any]) -> Any:
    config = configuration()
    for part in _parts(config):
        for (kind, name), value in missing.items():
            if type(part) is kind:
                setattr(part, name, value)
    return config


def _parts(config: Any) -> list[Any]:
    """A configuration and all that it holds."""
    inner = [value for value in vars(config).values() if hasattr(value, "to_dict")]
    return [config, *(part for each in inner for part in _parts(each))]


def made(kind: Any, configuration: Callable[[], Any]) -> Any:
    """A model of the class ``kind``; ``configuration`` is called anew for each, for some change theirs."""
    import torch

    torch.manual_seed(0)
    with contextlib.suppress(RuntimeError, NotImplementedError), torch.device("meta"):
        _refuse_large(kind(configuration()))  # some ask for numbers, which meta has not
    model = kind(configuration())
    _refuse_large(model)
    for parameter in model.parameters():
        if not parameter.any():  # gates that start at zero would hide their gradients
            torch.nn.init.normal_(parameter, std=0.02)
            if parameter.ndim == 1:  # a bias; behind a ReLU one below zero hides all
                parameter.data.abs_()
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return model


def _refuse_large(model: Any) -> None:
    count = sum(parameter.numel() for parameter in model.parameters())
    if count > LARGEST:
        raise ValueError(f"{count:,} parameters are left")
