"""What a catalog consists of: entries, their states in a process, and what is wrong with a file."""

from __future__ import annotations

import os
from enum import Enum
from typing import NamedTuple


class State(str, Enum):
    """Where a patch stands in this process."""

    ARMED = "armed"
    NOT_NEEDED = "not needed"
    OFF = "off"
    APPLIED = "applied"
    FAILED = "failed"
    CONFLICT = "conflict"


# Of the outcomes of a patch's several targets, the one that says most about the patch.
WEIGHT = (State.FAILED, State.CONFLICT, State.OFF, State.APPLIED, State.ARMED, State.NOT_NEEDED)


class Status(NamedTuple):
    """A patch's state, with its reason in words a user can act on."""

    id: str
    state: State
    reason: str


class Problem(NamedTuple):
    """Something wrong with what was given to us: where it is, what it is, what to do."""

    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. {self.remedy}"


class Entry(NamedTuple):
    """One patch as the catalog declares it; the fields are those of ``compat.toml``.

    ``module`` is not written there: it says where the file named after the patch lies in ``patches/``.
    ``before`` is for what a target must find when its code runs: it may be left out.
    """

    id: str
    module: str
    failures: tuple[str, ...]
    severity: str
    summary: str
    summary_zh: str
    targets: tuple[str, ...]
    requires: dict[str, str]
    upstream: tuple[str, ...]
    before: bool = False


class Catalog(NamedTuple):
    """All entries that are sound, the problems of those that are not, and import names.

    ``modules`` maps a distribution to its import name where the two differ.
    """

    path: str
    entries: dict[str, Entry]
    modules: dict[str, str]
    problems: tuple[Problem, ...]

    @property
    def patches(self) -> str:
        """The folder of the patch files."""
        return os.path.join(os.path.dirname(self.path), "patches")
