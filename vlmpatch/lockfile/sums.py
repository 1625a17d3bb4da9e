"""One sum over all files of patches, by which machines are compared; light, for every process group asks."""

from __future__ import annotations

import hashlib
import os


def sum_of(patches: str) -> str:
    """One sum over every file of patches, so that two machines can be compared.

    Raises:
        OSError: one of them cannot be read.
    """
    sum_ = hashlib.sha256()
    for upstream in sorted(os.scandir(patches), key=lambda entry: entry.name):
        names = sorted(os.listdir(upstream.path)) if upstream.is_dir() else ()
        for name in (name for name in names if name.endswith(".py")):
            with open(os.path.join(upstream.path, name), "rb") as handle:
                sum_.update(f"{upstream.name}/{name}\0".encode() + handle.read())
    return sum_.hexdigest()[:8]
