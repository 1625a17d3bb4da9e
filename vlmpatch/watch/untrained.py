"""Parts of a model that were meant to be trained, by what is said of its adapters, and are frozen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vlmpatch.watch.findings import IDLE_ADAPTERS, NOT_TARGETED, SilentFailure
from vlmpatch.watch.parts import Part, idle_adapters, named
from vlmpatch.watch.refrozen import History


def untrained(model: Any, parts: Mapping[str, Part], history: History | None) -> list[SilentFailure]:
    """What is frozen though its LoRA, or the script before it, says otherwise.

    Args:
        model: what is trained.
        parts: its parts.
        history: what was chosen to be trained before PEFT had the model.
    """
    found = [
        SilentFailure(
            f"{len(names)} parameters of the adapter in the {part} are frozen, all of them",
            names,
            IDLE_ADAPTERS,
        )
        for part, names in idle_adapters(parts)
    ]
    if not found:
        found += _not_targeted(model, parts)
    return found + (history.finding(model, parts) if history is not None else [])


def _not_targeted(model: Any, parts: Mapping[str, Part]) -> Iterator[SilentFailure]:
    for targets in _targets(model):
        for part, target in named(targets):
            if part in parts and not parts[part].trained:
                what = f"the LoRA's target {target!r} names the {part}, of which nothing is trained"
                yield SilentFailure(what, (), NOT_TARGETED)


def _targets(model: Any) -> Iterator[Any]:
    """What each adapter's configuration gives as targets, where nothing is taken out of them again."""
    configs = getattr(model, "peft_config", None)
    for config in configs.values() if isinstance(configs, Mapping) else ():
        if not getattr(config, "exclude_modules", None):
            yield getattr(config, "target_modules", None)
