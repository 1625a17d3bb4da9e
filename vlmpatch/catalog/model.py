"""What a catalog consists of: entries, their states in a process, and what is wrong with a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
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

    @property
    def set(self) -> str:
        """The patch set of others that it is from; empty for a patch of vlmpatch's own."""
        return self.id.rpartition("/")[0]


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
    ``before`` is for what a target must find when its code runs, ``was`` for the ids of patches whose place
    it took: both may be left out. ``set`` and ``package`` are not written either: the patch set of others it
    is from, and the package that its module is in.
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
    was: tuple[str, ...] = ()
    set: str = ""
    package: str = "vlmpatch.patches"


class PatchSet(NamedTuple):
    """Patches of others, in the form of ours, which were switched on by name.

    Attributes:
        name: of its entry point; the ids of its patches begin with it.
        distribution: what was installed.
        version: of that.
        path: its ``compat.toml``.
        package: its ``patches``, as Python imports them.
    """

    name: str
    distribution: str
    version: str
    path: str
    package: str

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution} {self.version})"


class Catalog(NamedTuple):
    """All entries that are sound, the problems of those that are not, and import names.

    ``modules`` maps a distribution to its import name where the two differ. ``sets`` are the patch sets of
    others among the entries; ``conflicts`` says of their patches that cannot stand beside ours why not.
    """

    path: str
    entries: dict[str, Entry]
    modules: dict[str, str]
    problems: tuple[Problem, ...]
    sets: Mapping[str, PatchSet] = MappingProxyType({})
    conflicts: Mapping[str, str] = MappingProxyType({})

    @property
    def renamed(self) -> dict[str, str]:
        """By each former id, the patch that has taken its place."""
        return {old: entry.id for entry in self.entries.values() for old in entry.was}

    @property
    def patches(self) -> str:
        """The folder of our own patch files."""
        return os.path.join(os.path.dirname(self.path), "patches")

    def path_of(self, entry: Entry) -> str:
        """The ``compat.toml`` that declares ``entry``."""
        return self.sets[entry.set].path if entry.set else self.path

    def patches_of(self, entry: Entry) -> str:
        """The folder of the patch files among which that of ``entry`` is."""
        return os.path.join(os.path.dirname(self.path_of(entry)), "patches")
