"""Which version of a distribution is the one that runs?

``importlib.metadata`` and ``packaging`` cost more to import than vlmpatch itself, so nothing here is
imported before the first gate is asked.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_PEP440 = ("specifiers", "version")


class Installed(NamedTuple):
    """What is known of one distribution; ``version`` is None when it is not installed."""

    version: str | None
    source: str
    remark: str = ""


def installed(distribution: str, module: str) -> Installed:
    """The version of ``distribution`` that this process runs, or would import.

    What the loaded module says of itself stands above metadata, which a second distribution of the
    same module or a broken upgrade can falsify; without metadata (a checkout on PYTHONPATH, a
    half-removed package) the package's own ``__version__`` is read from its source.

    Args:
        distribution: the name ``pip`` knows.
        module: the name it is imported by.
    """
    recorded = _recorded(distribution)
    loaded = getattr(sys.modules.get(module), "__version__", None)
    if isinstance(loaded, str):
        contradicted = recorded and not _same_release(loaded, recorded[0])
        remark = f"metadata says {recorded[0]}, the loaded module {loaded}" if contradicted else ""
        return Installed(str(loaded), "loaded module", remark)
    if recorded:
        several = f"several are recorded: {', '.join(recorded)}" if len(set(recorded)) > 1 else ""
        return Installed(recorded[0], "metadata", several)
    stated = _stated(module)
    if stated is None:
        return Installed(None, "absent")
    return Installed(stated, "source", "no metadata; read from the package's source")


def running(distribution: str, module: str) -> str | None:
    """The version alone, as ``installed`` has it; metadata is read only where no loaded module says it."""
    loaded = getattr(sys.modules.get(module), "__version__", None)
    return str(loaded) if isinstance(loaded, str) else installed(distribution, module).version


@functools.lru_cache(maxsize=256)  # the same few questions for every target of every patch
def satisfies(version: str, specifier: str) -> bool:
    """Whether ``version`` lies in the PEP 440 range ``specifier``, pre-releases counted in.

    Raises:
        ValueError: one of the two is not PEP 440.
    """
    specifiers, parsed = pep440()
    return bool(specifiers(specifier).contains(parsed(version), prereleases=True))


def pep440() -> tuple[Any, Any]:
    """``SpecifierSet`` and ``Version`` of packaging, beside a folder of that name that is not it as well.

    Raises:
        ImportError: it is not installed.
    """
    package = "packaging"
    # Looked at first: a packaging.py beside a script is the script's, and is not ours to run.
    if not _has("packaging", "specifiers.py"):
        package = _under_another_name("packaging", "specifiers.py")
    specifiers, version = (importlib.import_module(f"{package}.{name}") for name in _PEP440)
    return specifiers.SpecifierSet, version.Version


def _has(package: str, file: str) -> bool:
    """Whether what is, or would be, imported as ``package`` has a file ``file``."""
    from importlib.machinery import PathFinder

    places = getattr(sys.modules.get(package), "__path__", None)
    if package not in sys.modules:
        spec = PathFinder.find_spec(package)
        places = spec.submodule_search_locations if spec is not None else None
    return any(os.path.isfile(os.path.join(place, file)) for place in places or ())


def _under_another_name(package: str, having: str) -> str:
    """Import the ``package`` on ``sys.path`` that has a file ``having``, as a package of ours."""
    from importlib.machinery import PathFinder

    alias = f"vlmpatch._{package}"
    for folder in sys.path if alias not in sys.modules else ():
        spec = PathFinder.find_spec(package, [folder])
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        if spec is not None and any(os.path.isfile(os.path.join(place, having)) for place in places):
            module = ModuleType(alias)
            module.__path__ = places
            sys.modules[alias] = module
            break
    return alias if alias in sys.modules else package  # in a zip, of a finder of its own


def _recorded(distribution: str) -> list[str]:
    return _read(distribution, tuple((folder, _changed(folder)) for folder in sys.path))


def _changed(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:  # a zip that is gone, a folder that never was
        return 0


@functools.lru_cache(maxsize=64)  # most targets of most patches ask for the same few
def _read(distribution: str, path: tuple[tuple[str, int], ...]) -> list[str]:
    from importlib import metadata

    try:
        found = [_version(dist) for dist in metadata.distributions(name=distribution)]
    except Exception:  # a broken dist-info folder can fail in any way; the next source is asked
        return []
    return [version for version in found if version]


def _version(dist: Distribution) -> str | None:
    # dist.version takes the whole of METADATA, the README included, apart as an e-mail: 10 ms each. From
    # Python 3.14 on it warns where there is no version. An .egg-info is a folder with PKG-INFO, or a file.
    text = next(filter(None, map(dist.read_text, ("METADATA", "PKG-INFO", ""))), "")
    match = re.search(r"^Version:[ \t]*(\S+)", text.partition("\n\n")[0], re.M)
    return match[1] if match else None


def _same_release(one: str, other: str) -> bool:
    _, version = pep440()
    try:
        return bool(version(one).public == version(other).public)
    except ValueError:  # not PEP 440
        return one == other


def _stated(module: str) -> str | None:
    from vlmpatch.gate.source import locate

    path = locate(module)
    if path is None:
        return None
    for candidate in (path, os.path.join(os.path.dirname(path), "version.py")):
        try:
            with open(candidate, encoding="utf-8", errors="replace") as handle:
                match = re.search(r"^__version__\s*(?::\s*\w+\s*)?=\s*['\"]([^'\"]+)", handle.read(), re.M)
        except OSError:
            continue
        if match:
            return match[1]
    return "unknown"
