"""Words to the user, through the standard logger ``vlmpatch``.

Without any configuration Python prints warnings of an unconfigured logger to stderr, which is all a
training job needs. ``logging`` is imported with the first message: a silent start stays light.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

_level = "warning"
_said: set[tuple[str, str]] = set()
_printed: set[str] = set()


def configure(level: str) -> None:
    """Set what is shown: one of ``settings.LEVELS``. Called once, when vlmpatch starts."""
    global _level
    _level = level
    if level == "warning":
        return  # Python's own default; leaving the logger alone keeps `logging` unimported
    import logging

    logger = logging.getLogger("vlmpatch")
    logger.setLevel(logging.CRITICAL + 1 if level == "off" else level.upper())
    if level in ("debug", "info"):
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("vlmpatch %(levelname)s: %(message)s"))
        logger.addHandler(handler)


def debug(text: str) -> None:
    """Shown under VLMPATCH_LOG=debug."""
    if _level == "debug":
        _logger().debug(text)


def info(text: str) -> None:
    """Shown under VLMPATCH_LOG=info."""
    if _level in ("debug", "info"):
        _logger().info(text)


def warn_once(patch_id: str, key: str, text: str, own: bool = False) -> None:
    """One warning per patch and key, naming the command that explains it; ``own`` as for ``warn``."""
    if (patch_id, key) in _said:
        return
    _said.add((patch_id, key))
    warn(f"vlmpatch [{patch_id}]: {text} (python -m vlmpatch explain {patch_id})", own)


def warn(text: str, own: bool = False) -> None:
    """A warning, printed by the first rank of each machine only: the others would repeat it.

    Args:
        text: what is printed.
        own: it is true of this rank, and perhaps of no other; printed whatever rank this is.
    """
    rank = os.environ.get("LOCAL_RANK", "")
    if not own and rank.isdecimal() and int(rank) > 0:
        debug(text)
        return
    if _level != "off":
        _printed.add(text)
    _logger().warning(text)


def was_printed(text: str) -> bool:
    """Whether this very warning has been given in this process."""
    return text in _printed


def _logger() -> logging.Logger:
    import logging

    return logging.getLogger("vlmpatch")
