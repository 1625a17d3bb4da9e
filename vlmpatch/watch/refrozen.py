"""What a script had unfrozen before PEFT froze everything that is no adapter."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from vlmpatch.watch.findings import REFROZEN, SilentFailure
from vlmpatch.watch.parts import Part

SHARE = 0.25  # of a model's elements; who leaves more than that trainable has frozen a part, not chosen one


class History:
    """What was trainable when a model was given to PEFT, of each model that still lives."""

    def __init__(self) -> None:
        self._chosen: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()

    def keep(self, wrapped: Any, chosen: dict[str, Any]) -> None:
        """Remember ``chosen`` for the model that PEFT has made of it."""
        if chosen:
            self._chosen[wrapped] = chosen

    def finding(self, model: Any, parts: Mapping[str, Part]) -> list[SilentFailure]:
        """Those that are frozen now, and have no adapter or copy that is trained in their place."""
        trained = [f".{name}" for part in parts.values() for name in part.trained]
        lost = tuple(
            name
            for name, parameter in self._chosen.get(model, {}).items()
            if (alive := parameter()) is not None
            and not alive.requires_grad
            and not any(f".{name.rpartition('.')[0]}." in other for other in trained)
        )
        what = f"get_peft_model froze {len(lost)} parameters again that had been chosen to be trained"
        return [SilentFailure(what, lost, REFROZEN)] if lost else []


def chosen(model: Any) -> dict[str, Any]:
    """The parameters that were chosen to be trained, by name; none where nothing or little is frozen."""
    every = dict(model.named_parameters()) if hasattr(model, "named_parameters") else {}
    trainable = {name: parameter for name, parameter in every.items() if parameter.requires_grad}
    few = sum(map(_size, trainable.values())) <= SHARE * sum(map(_size, every.values()))
    return {name: weakref.ref(parameter) for name, parameter in trainable.items()} if few else {}


def _size(parameter: Any) -> int:
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())
