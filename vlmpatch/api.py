"""What a patch file may use.

``Patch`` to change things, ``Code`` to look, ``Unrecognised`` to decline, ``Argument`` to read a call,
``signature`` to read a function's parameters, ``assign`` to write a value of a run, ``answers_while_traced``
for what torch.compile cannot trace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from vlmpatch.gate.source import Code, Function, Unrecognised, of_file, of_module
from vlmpatch.journal.journal import AlreadyPatched, Foreign, Journal, Taken, WrongSignature
from vlmpatch.journal.tracing import answers_while_traced
from vlmpatch.journal.values import assign
from vlmpatch.support import log
from vlmpatch.support.arguments import Argument
from vlmpatch.support.signature import signature

__all__ = [
    "Argument",
    "Code",
    "Function",
    "Patch",
    "Unrecognised",
    "answers_while_traced",
    "assign",
    "of_file",
    "of_module",
    "signature",
]


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
        with self._journal.lock:  # not between a look at it and the write that follows
            self.pauses += not value
            self._active = value

    def changes(self) -> list[str]:
        """What this patch has changed so far, in words."""
        return self._journal.changes(self.id)

    def wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Put ``wrapper(original, *args, **kwargs)`` around ``owner.name``; see ``Journal.wrap``."""
        try:
            self._write(self._journal.wrap, owner, name, wrapper)
        except (AlreadyPatched, Foreign, WrongSignature) as neighbour:
            if not self.settled:
                raise
            log.debug(f"{self.id}: {neighbour}")

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name``, which may be new, to ``value``; see ``Journal.replace``."""
        try:
            self._write(self._journal.replace, owner, name, value)
        except AlreadyPatched as neighbour:
            if not self.settled:
                raise
            log.debug(f"{self.id}: {neighbour}")

    @contextlib.contextmanager
    def swapped(self, owner: Any, name: str, value: Any) -> Iterator[None]:
        """``owner.name`` is ``value`` inside the block, and afterwards what it was before."""
        with contextlib.ExitStack() as block:
            with self._journal.lock:
                if self.active:
                    with self._told():
                        block.enter_context(self._journal.swapped(self.id, owner, name, value))
            yield

    def set_item(self, mapping: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """``mapping[key] = value``: an environment variable, an entry of a registry."""
        self._write(self._journal.set_item, mapping, key, value)

    def set_default(self, function: Callable[..., Any], name: str, value: Any) -> None:
        """Change a parameter's default in the innermost function; see ``Journal.set_default``."""
        self._write(self._journal.set_default, function, name, value)

    def hook(self, register: Callable[..., Any], function: Callable[..., Any], **kwargs: Any) -> None:
        """``register(function, **kwargs)`` for registrations whose handle has ``remove()``."""
        self._write(self._journal.hook, register, function, **kwargs)

    def warn(self, key: str, text: str, own: bool = False) -> None:
        """Warn once per ``key`` and process, naming this patch and the command that explains it.

        Args:
            key: what the warning is about.
            text: what is printed, by the first rank of each machine.
            own: it is true of this rank, and perhaps of no other; printed whatever rank this is.
        """
        if self.active:
            log.warn_once(self.id, key, text, own)

    def _write(self, write: Callable[..., None], *what: Any, **options: Any) -> None:
        # Under one lock with what switches us off: nothing is written behind an undo's back.
        with self._journal.lock, self._told():
            if self.active:
                write(self.id, *what, **options)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """In the midst of the host's code a place that is taken is told, and nothing is raised."""
        try:
            yield
        except Taken as conflict:
            if not self.settled:
                raise
            self.warn(f"taken {conflict}", f"{conflict}; it was left as it is", own=True)
        except Foreign as refused:
            if not self.settled:
                raise
            log.debug(f"{self.id}: {refused}")
