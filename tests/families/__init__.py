"""Tiny models, one file a family; another family is one more file here, with a ``make``.

``tests.lab.launch.checkpoint`` makes one in a stack, once a release of transformers.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path

HERE = Path(__file__).parent


@functools.cache
def names() -> tuple[str, ...]:
    """Every family that has a file, or a folder where it brings code of its own."""
    return tuple(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_"))


def make(name: str, folder: Path) -> int:
    """Make the checkpoint of ``name``.

    Returns:
        Its number of parameters.
    """
    made: int = importlib.import_module(f"{__name__}.{name}").make(folder)
    return made


def recipe(name: str) -> list[Path]:
    """The files that decide what the checkpoint of ``name`` is: its own, and what families share."""
    own = HERE / name
    return [
        *(sorted(own.glob("*.py")) if own.is_dir() else [own.with_suffix(".py")]),
        *sorted((HERE / "_shared").glob("*.py")),
    ]
