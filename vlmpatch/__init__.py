"""Version-gated patches that let vision-language models train with gradient checkpointing.

``import vlmpatch`` as a script's first line reads the catalog and arms import hooks; nothing heavy is
imported. Each patch is then applied when, and only if, the installed code it fixes is imported.
"""

from __future__ import annotations

import os as _os

__version__ = "0.2.0"

_HERE = _os.path.dirname(_os.path.abspath(__file__))
if not _os.path.isdir(_os.path.join(_HERE, "patches")):
    # A checkout or an editable install: patches/ and compat.toml lie beside this package.
    __path__.append(_os.path.dirname(_HERE))

from vlmpatch.bootstrap import arm as _arm  # noqa: E402  (needs __path__ as set above)
from vlmpatch.bootstrap import engine as _engine  # noqa: E402

TYPE_CHECKING = False  # `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from vlmpatch.catalog.model import State, Status
    from vlmpatch.engine.engine import PatchError

__all__ = [
    "PatchError", "State", "Status", "__version__", "disabled", "redo", "require", "status", "undo", "use",
]  # fmt: skip

_HOMES = {
    "PatchError": "vlmpatch.engine.engine",
    "State": "vlmpatch.catalog.model",
    "Status": "vlmpatch.catalog.model",
}
_arm()


def __getattr__(name: str) -> object:
    # What only callers of the functions below need is imported when it is asked for.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def status() -> dict[str, Status]:
    """What became of every patch in this process, by patch id.

    Patches whose target is not imported yet are ``armed``; their version gate is evaluated here, so
    one that the installed versions do not need is reported as ``not needed`` at once.
    """
    return _engine().status()


def require(*ids: str, lock: str | None = None) -> None:
    """Insist on patches a program depends on.

    Passes when each is applied, armed, or not needed by what is installed, and when all that is or will be
    applied here is what ``lock`` has.

    Args:
        ids: patch ids as ``python -m vlmpatch list`` prints them.
        lock: a file that ``python -m vlmpatch lock`` wrote.

    Raises:
        PatchError: naming the first patch that is unknown, off, failed or in conflict, and why; or naming
            what is not as in the lock.
    """
    _engine().require(ids, lock)


def use(*names: str) -> None:
    """Switch on patch sets of others that are installed; VLMPATCH_SETS does so without an edit.

    Their patches are then judged, applied, reported and taken back as ours are, under ids that begin with the
    set's name: ``acme-vl/rope-cache``. Their code is not vlmpatch's; see SECURITY.md.

    Args:
        names: of the sets, as ``python -m vlmpatch doctor`` prints them.

    Raises:
        PatchError: there is no such set, something in it is broken, or it has a patch that vlmpatch has; then
            nothing of it is switched on.
    """
    _engine().use(names)


def undo(*ids: str) -> list[str]:
    """Take patches back, all of them when none is named.

    Args:
        ids: patch ids; none means all.

    Returns:
        Remarks on what could not be restored, because someone else patched on top of it.

    Raises:
        PatchError: for an unknown id.
    """
    return _engine().undo(ids)


def redo(*ids: str) -> None:
    """Apply patches again that ``undo`` took back, all of them when none is named.

    Args:
        ids: patch ids; none means all. What VLMPATCH_DISABLE names stays off.

    Raises:
        PatchError: for an unknown id.
    """
    _engine().redo(ids)


def disabled(*ids: str) -> AbstractContextManager[None]:
    """Context manager: the named patches (all when none is named) are off inside the block.

    Blocks may lie in one another and run in several threads: a patch is on again when the last has ended,
    unless ``undo`` was called meanwhile.

    Args:
        ids: patch ids; none means all.

    Raises:
        PatchError: for an unknown id.
    """
    return _engine().disabled(ids)
