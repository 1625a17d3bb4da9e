"""compat.toml, compiled: what ``import vlmpatch`` reads instead of parsing TOML.

The index holds every sound entry and the names worth waiting for. A wheel brings it beside its catalog;
a checkout writes it into ``__pycache__``, as Python does with byte code, or into the user's cache where that
is not to be written (PYTHONDONTWRITEBYTECODE, another user's folder). It is used only while it was made from
exactly the catalog that lies there, so nobody has to keep it up to date. This module is on the
path of ``import vlmpatch``: it imports nothing that an interpreter has not imported by itself.
"""

from __future__ import annotations

import marshal
import os

from vlmpatch.catalog.location import upstreams

TYPE_CHECKING = False  # `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from vlmpatch.catalog.model import Catalog

FORMAT = 2
# Imported with every model of ``trust_remote_code``; see ``vlmpatch.imports.remote_code``.
DOOR = "transformers.dynamic_module_utils"


def stamps(path: str) -> dict[str, int]:
    """When a file last came to or left each folder of patches beside the catalog at ``path``."""
    beside = os.path.dirname(path)
    folders = [f"patches/{upstream}" for upstream in upstreams(os.path.join(beside, "patches"))]
    return {folder: os.stat(f"{beside}/{folder}").st_mtime_ns for folder in folders}


def dumps(
    source: bytes, catalog: Catalog, fields: tuple[str, ...], stamps: dict[str, int] | None = None
) -> bytes:
    """The index of ``catalog``.

    Args:
        source: what ``catalog`` was read from.
        catalog: the catalog.
        fields: those of its entries.
        stamps: of a checkout, whose patch files may move while the catalog stays as it is.
    """
    targets = {target for entry in catalog.entries.values() for target in entry.targets} | {DOOR}
    data = {
        "format": FORMAT,
        "source": source,  # compared whole: quicker than any hash, and exact
        "stamps": stamps or {},
        "names": frozenset(target for target in targets if "*" not in target),
        "tops": frozenset(target.partition(".")[0] for target in targets if "*" in target),
        "fields": fields,
        "entries": tuple(tuple(entry) for entry in catalog.entries.values()),
        "modules": catalog.modules,
    }
    return marshal.dumps(data, 4)  # what every Python from 3.4 on reads


def read(path: str) -> dict[str, Any] | None:
    """What ``dumps`` made of the catalog at ``path`` as it lies there now, or None."""
    try:
        with open(path, "rb") as handle:
            source = handle.read()
    except OSError:
        return None
    for place in _places(path):
        try:
            if not _trusted(place):
                continue
            with open(place, "rb") as handle:
                data = marshal.loads(handle.read())
            if data["format"] == FORMAT and data["source"] == source and _unmoved(data["stamps"], path):
                return dict(data)
        except Exception:  # no index, or the rest of one that was cut short: the catalog itself is read
            continue
    return None


def _trusted(place: str) -> bool:
    # A cache may be shared: what is read was written by this user, by root, or by who installed vlmpatch.
    owner = os.stat(place).st_uid
    return not hasattr(os, "getuid") or owner in (os.getuid(), 0, os.stat(__file__).st_uid)


def _unmoved(stamps: dict[str, int], path: str) -> bool:
    beside = os.path.dirname(path)
    return all(os.stat(f"{beside}/{folder}").st_mtime_ns == stamp for folder, stamp in stamps.items())


def write(path: str, compiled: bytes, beside: bool = True) -> None:
    """Keep the index of the catalog at ``path`` for the next process, where a folder allows it.

    Args:
        path: of the catalog.
        compiled: what ``dumps`` made of it.
        beside: whether ``__pycache__`` beside the catalog may be written, rather than the user's cache.
    """
    _, pycache, own = _places(path)
    if not (beside and _written(pycache, compiled)):
        _written(own, compiled, mode=0o700)


def _written(place: str, compiled: bytes, mode: int = 0o777) -> bool:
    # Ranks of several machines share the folder, and in containers they often have one process id.
    draft = f"{place}.{os.getpid()}.{os.urandom(8).hex()}"
    try:
        os.makedirs(os.path.dirname(place), mode=mode, exist_ok=True)
        with open(draft, "xb") as handle:
            handle.write(compiled)
        os.replace(draft, place)  # 64 ranks may start at once; each sees the old one or a whole one
        _sweep(place)
    except OSError:
        return False
    return True


def _sweep(place: str) -> None:
    """Remove what nobody needs: drafts of processes that were killed an hour ago, indexes of a month ago."""
    import time

    folder, name = os.path.split(place)
    now = time.time()
    for other in os.listdir(folder):
        path = os.path.join(folder, other)
        limit = 3600 if other.startswith(f"{name}.") else 30 * 86400 if other.endswith(".index") else None
        if limit is not None and now - os.stat(path).st_mtime > limit:
            os.unlink(path)


def _places(path: str) -> tuple[str, str, str]:
    """Beside the catalog, as a wheel brings it; where Python keeps byte code; in the user's cache."""
    folder = os.path.dirname(path)
    name = folder.replace(os.sep, "-").strip("-")[-200:]  # a file's name takes no more than 255 bytes
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return (
        os.path.join(folder, "compat.index"),
        os.path.join(folder, "__pycache__", "compat.index"),
        os.path.join(caches, "vlmpatch", f"{name}.index"),
    )
