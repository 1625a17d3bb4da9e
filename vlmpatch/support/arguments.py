"""One argument of a call that is handed on as it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Argument(NamedTuple):
    """A parameter of a function whose wrapper takes ``*args, **kwargs``.

    Args:
        place: where it stands among ``args``, the object a method is called on not counted.
        name: its name, under which it may be among ``kwargs``.
    """

    place: int
    name: str

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any], default: Any = None) -> Any:
        """What the caller passed, or ``default``."""
        return args[self.place] if len(args) > self.place else kwargs.get(self.name, default)

    def replaced(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call with ``value`` in its place; by name where the caller passed nothing."""
        if len(args) > self.place:
            return (*args[: self.place], value, *args[self.place + 1 :]), kwargs
        return args, {**kwargs, self.name: value}
