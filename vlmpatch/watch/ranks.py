"""Nodes with other versions than the rest are noticed when a job's process group begins.

The first to come leaves one line in the job's store: its versions, sums of its catalog, its patches and its
lock, what is switched off. Each of the others compares its own with that. It is one question to the store: no
collective, nobody waits for anybody, and whatever is found or fails is at most a warning.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

from vlmpatch import __version__
from vlmpatch.catalog.model import Catalog
from vlmpatch.gate import versions
from vlmpatch.imports.finder import Hooks
from vlmpatch.journal.journal import Journal
from vlmpatch.lockfile.sums import sum_of
from vlmpatch.support import files, log

DOOR = "torch.distributed.distributed_c10d"
INIT = "init_process_group"
KEY = "vlmpatch/first"
SHOWN = 60  # characters of what another rank says


def watch_nodes(
    hooks: Hooks, journal: Journal, owner: str, then: Callable[[], None], mine: Callable[[], dict[str, str]]
) -> None:
    """Compare once every process group begins.

    Args:
        hooks: tells of torch.
        journal: records the change.
        owner: the name under which it does.
        then: called once it is made; whether anybody wants it now is the caller's to know.
        mine: what should be the same on every rank.
    """

    def begin(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        try:
            compare(sys.modules[DOOR], mine())
        except Exception as error:  # a backend without a store, a store that has gone: theirs to say
            log.debug(f"versions were not compared between ranks: {error!r}")
        return result

    def on_door(module: ModuleType) -> None:
        journal.wrap(owner, module, INIT, begin)
        then()

    hooks.watch(DOOR, on_door)


def facts(catalog: Catalog, off: Callable[[], Collection[str]], lock: str = "") -> dict[str, str]:
    """What should be the same on every rank; of a version, what its builds have in common.

    Args:
        catalog: what is known.
        off: says which patches are switched off.
        lock: the file that VLMPATCH_LOCK names.
    """
    with open(catalog.path, "rb") as handle:
        known = {"the catalog": hashlib.sha256(handle.read()).hexdigest()[:8]}
    known |= {"the patches": sum_of(catalog.patches)}
    for each in catalog.sets.values():
        folder = os.path.join(os.path.dirname(each.path), "patches")
        known[f"patch set {each.name}"] = f"{each.version} ({sum_of(folder)})"
    if lock:
        known["VLMPATCH_LOCK"] = _sum(lock)
    known |= {"vlmpatch": __version__, "switched off": ", ".join(sorted(off())) or "nothing"}
    asked = {name for entry in catalog.entries.values() for name in entry.requires}
    found = {name: versions.running(name, catalog.modules.get(name, name)) for name in sorted(asked)}
    return known | {name: version.partition("+")[0] for name, version in found.items() if version}


def _sum(path: str) -> str:
    try:
        return hashlib.sha256(files.read(path).encode()).hexdigest()[:8]
    except OSError:
        return "cannot be read"


def incarnation() -> list[str]:
    """Which attempt of which job this is; the store outlives a restart by torchrun."""
    return [os.environ.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT")]


def compare(distributed: Any, mine: dict[str, str]) -> None:
    """Warn of how this rank differs from the first; what one of the two does not have is no difference."""
    if distributed.get_world_size() == 1:
        return
    rank = distributed.get_rank()
    store, key = distributed._get_default_store(), "/".join([KEY, *incarnation()])
    first = json.loads(store.compare_set(key, "", json.dumps({"rank": rank, "facts": mine})))
    theirs = {name: str(value) for name, value in first["facts"].items()}
    both = sorted(mine.keys() & theirs.keys())
    unlike = [
        f"{name} {mine[name]} (there {theirs[name][:SHOWN]})" for name in both if mine[name] != theirs[name]
    ]
    if unlike:
        log.warn(
            f"vlmpatch: rank {rank} differs from rank {int(first['rank'])}: {', '.join(unlike)}. "
            "Patches are chosen by version, so the ranks may not behave alike; install the same everywhere. "
            "`vlmpatch doctor --digest` prints a line to compare nodes by"
        )
