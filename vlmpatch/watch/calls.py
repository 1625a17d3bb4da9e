"""Whether parts of a model that no backward has reached are called at all, and with a graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vlmpatch.watch.findings import NO_GRAPH, NOT_CALLED
from vlmpatch.watch.parts import LANGUAGE, Part, part_of


class Calls:
    """Sees, of each part, the module around it and one inside it called in training.

    The module inside owns a trained parameter: a tower may switch gradients off in its own ``forward``, which
    what looks on from outside does not see.

    Args:
        model: what is trained.
        parts: those to look at.
    """

    def __init__(self, model: Any, parts: Mapping[str, Part]) -> None:
        self.model = model
        self._outside: dict[str, set[bool]] = {}  # whether gradients were on, of every call
        self._inside: dict[str, set[bool]] = {}
        self._handles = []
        modules = dict(model.named_modules())
        for name, part in parts.items():
            owner = part.trained[0].rpartition(".")[0]
            for seen, module in ((self._outside, _around(owner, name)), (self._inside, owner)):
                note = self._note(seen.setdefault(name, set()))
                if module in modules:
                    self._handles.append(modules[module].register_forward_pre_hook(note))

    def _note(self, seen: set[bool]) -> Any:
        import torch

        def note(module: Any, args: Any) -> None:
            if self.model.training:
                seen.add(torch.is_grad_enabled())

        return note

    def end(self) -> None:
        """Look no more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def cause(self, parts: Iterable[str], checkpointing: bool) -> str:
        """Why the first of ``parts`` that was never called, or never with a graph, is not reached; else "".

        Args:
            parts: some that may be among those that are looked at.
            checkpointing: whether it is on: the reentrant kind switches gradients off inside, too.
        """
        for part in sorted(set(parts) & self._inside.keys()):
            outside, inside = self._outside[part], self._inside[part]
            if outside == {False} or (inside == {False} and not checkpointing):
                return NO_GRAPH.format(part=part)
            if not inside and not outside:  # parameters may be read without a call of what owns them
                return NOT_CALLED.format(part=part)
        return ""


def unreached(parts: Mapping[str, Part], arrived: Mapping[str, Any]) -> dict[str, Part]:
    """Parts beside the language model of which nothing that is to be trained has a gradient yet."""
    return {
        name: part
        for name, part in parts.items()
        if name != LANGUAGE and part.trained and not any(map(arrived.__contains__, part.trained))
    }


def _around(module: str, part: str) -> str:
    """The outermost module of ``part`` that ``module`` lies in."""
    pieces = module.split(".")
    names = (".".join(pieces[:length]) for length in range(1, len(pieces) + 1))
    return next(name for name in names if part_of(name) == part)
