"""What a patch file may use: ``Patch`` to change things, ``Code`` to look, ``Unrecognised`` to decline."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from vlmpatch import report
from vlmpatch.code import Code, Function, Unrecognised, of_file
from vlmpatch.journal import AlreadyPatched, Foreign, Journal

__all__ = ["Code", "Function", "Patch", "Unrecognised", "of_file"]


class Patch:
    """A patch's only way to foreign objects: every call is recorded and can be undone.

    It may be kept and used later, from inside the wrappers it installed. After ``undo`` it changes
    nothing any more.
    """

    def __init__(self, patch_id: str, journal: Journal) -> None:
        self.id = patch_id
        self.pauses = 0  # how often it was switched off: what it counted in between is not all there was
        self._active = True
        self.settled = True  # not in apply(): what is changed now is changed in the midst of the host's code
        self._journal = journal

    @property
    def active(self) -> bool:
        """Whether what it does now is wanted."""
        return self._active

    @active.setter
    def active(self, value: bool) -> None:
        self.pauses += not value
        self._active = value

    def changes(self) -> list[str]:
        """What this patch has changed so far, in words."""
        return self._journal.changes(self.id)

    def wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Put ``wrapper(original, *args, **kwargs)`` around ``owner.name``; see ``Journal.wrap``."""
        if not self.active:
            return
        try:
            self._journal.wrap(self.id, owner, name, wrapper)
        except (AlreadyPatched, Foreign) as neighbour:
            if not self.settled:
                raise
            report.debug(f"{self.id}: {neighbour}")

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name``, which may be new, to ``value``."""
        if self.active:
            self._journal.replace(self.id, owner, name, value)

    def swapped(self, owner: Any, name: str, value: Any) -> AbstractContextManager[None]:
        """``owner.name`` is ``value`` inside the block, and afterwards what it was before."""
        return self._journal.swapped(self.id, owner, name, value) if self.active else nullcontext()

    def set_item(self, mapping: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """``mapping[key] = value``: an environment variable, an entry of a registry."""
        if self.active:
            self._journal.set_item(self.id, mapping, key, value)

    def set_default(self, function: Callable[..., Any], name: str, value: Any) -> None:
        """Change a parameter's default in the innermost function; see ``Journal.set_default``."""
        if self.active:
            self._journal.set_default(self.id, function, name, value)

    def hook(self, register: Callable[..., Any], function: Callable[..., Any], **kwargs: Any) -> None:
        """``register(function, **kwargs)`` for registrations whose handle has ``remove()``."""
        if self.active:
            self._journal.hook(self.id, register, function, **kwargs)

    def warn(self, key: str, text: str) -> None:
        """Warn once per ``key`` and process, naming this patch and the command that explains it."""
        if self.active:
            report.warn_once(self.id, key, text)
