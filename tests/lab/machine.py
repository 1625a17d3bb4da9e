"""What the machine must have before anything is made on it, said in the first second.

``python3 -m tests.lab.machine``: exit status 1, and the command that installs it, where something is
missing. Runs on any Python, before there is an environment.
"""

from __future__ import annotations

import os
import shutil
import sys

NEEDED = {
    "numactl": "DeepSpeed's launcher asks for it",
}
PYTHON = (3, 10)
GIGABYTES = 30  # the stacks of `make test` with an empty cache; two of them bring CUDA's libraries


def missing(cache: str) -> list[str]:
    """What is missing, a line each, with the command that mends it."""
    found = []
    absent = [program for program in NEEDED if shutil.which(program) is None]
    if absent:
        why = "; ".join(f"{program}: {NEEDED[program]}" for program in absent)
        found.append(f"{' and '.join(absent)} not found ({why}): apt-get install -y {' '.join(absent)}")
    if sys.version_info < PYTHON:
        mine = ".".join(map(str, sys.version_info[:2]))
        found.append(f"Python {mine} is too old: make PYTHON=python3.11 test")
    folder = cache
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    free = shutil.disk_usage(folder).free / 1e9
    if free < GIGABYTES and not os.path.isdir(cache):
        found.append(
            f"{free:.0f} GB free in {folder}, the environments take {GIGABYTES}: free some, or name another "
            "folder in VLMPATCH_LAB"
        )
    return found


def main() -> int:
    """Print what is missing."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    lines = missing(os.environ.get("VLMPATCH_LAB") or os.path.join(base, "vlmpatch-lab"))
    for line in lines:
        print(f"missing: {line}", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
