"""Whether a release that nobody has tried still has what a patch reads of it.

A patch looks at the function that it is about. What else it reads of an upstream's objects, a list of groups
or a stream, it looks at nowhere: in a release that was tried its proof has read it. In a newer one, where it
was renamed, the patch would end the training with an ``AttributeError``. So every such name has to stand in
the target's source there, or the patch stays off.

``patches/reads.json`` has the names, read from the patches by ``python -m tests.matrix.reads``, and of each
distribution the newest release that was tried.
"""

from __future__ import annotations

import functools
import json
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from vlmpatch.catalog.model import Entry
from vlmpatch.gate import versions
from vlmpatch.gate.source import Code, Unrecognised, locate, of_file

FILE = "reads.json"  # in the package of the patches; a patch set of others need not have one
CHAINS = "chains"  # dotted names that begin with torch, which a patch reads whatever its target is


def check(entry: Entry, code: Code, modules: Mapping[str, str]) -> None:
    """Look for what ``entry`` reads, of all its targets: where one lacks something, none is changed.

    Args:
        entry: the patch, which is called for.
        code: the source of the target it is called for at.
        modules: import names of distributions, as in ``Catalog.modules``.

    Raises:
        Unrecognised: something of it is gone from a release that was not tried.
        ValueError: the record cannot be read.
    """
    record = _record(entry.package)
    tested = record.get("tested", {})
    for target, names in record.get("reads", {}).get(entry.module, {}).items():
        distribution = "torch" if target == CHAINS else _distribution(target, modules)
        known = tested.get(distribution)
        version = versions.running(distribution, modules.get(distribution, distribution)) if known else None
        if version is None or not _newer(version, known):
            continue
        if missing := sorted(_gone(target, names, code)):
            raise Unrecognised(
                f"{distribution} {version} is newer than any release this was tried on ({known}), and has no "
                f"{', '.join(missing)} where the patch reads it"
            )


def _gone(target: str, names: Iterable[str], code: Code) -> Iterator[str]:
    if target == CHAINS:
        return (chain for chain in names if not _leads_somewhere(chain))
    if target != code.module:
        path = locate(target)
        if path is None:  # nothing will be changed there
            return iter(())
        code = of_file(target, path)
    return (name for name in names if name not in code.words)


@functools.lru_cache(maxsize=8)
def _record(package: str) -> dict[str, Any]:
    try:
        text = pkgutil.get_data(package, FILE)
    except OSError:
        return {}
    try:
        found = json.loads(text or b"{}")
    except ValueError as error:
        raise ValueError(f"{FILE} of {package} is broken ({error}): install vlmpatch again") from error
    if not isinstance(found, dict):
        raise ValueError(f"{FILE} of {package} is no record: install vlmpatch again")
    return found


def _distribution(module: str, modules: Mapping[str, str]) -> str:
    top = module.partition(".")[0]
    return next((name for name, imported in modules.items() if imported == top), top)


def _newer(version: str, known: str) -> bool:
    try:
        return versions.satisfies(version, f">{known}")
    except ValueError:  # a build without a version of its own: its code decides
        return True


def _leads_somewhere(chain: str) -> bool:
    """Whether ``torch.a.b`` is there, as far as it can be told without importing anything."""
    first, *rest = chain.split(".")
    found: Any = sys.modules.get(first)
    for name in rest:
        if found is None:
            return True
        if not isinstance(found, ModuleType):
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        elif name in vars(found):
            found = vars(found)[name]
        else:  # what a module brings when it is asked for, or when it is imported
            return (
                hasattr(type(found), "__getattr__")
                or "__getattr__" in vars(found)
                or (locate(f"{found.__name__}.{name}") is not None)
            )
    return True
