"""``upstream/``: what goes wrong in the newest releases, and the smallest change that ends it there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tests.lab import envs, launch
from tests.lab.envs import Stack

UPSTREAM = launch.ROOT / "upstream"
STACK = envs.NEWEST
STACKS = {  # of packages that it does not have
    "swift": "swift460",
    "trl": "trl116",
    "llamafactory": "llamafactory095",
}
# Failures that the report of another one tells of, too.
SAME_REPORT = {"F01": "F06", "F02": "F08", "F03": "F06", "F50": "F53"}
SOURCE = re.compile(r"^\+\+\+ b/(?:src/)?(\S+)", re.M)


def cases() -> list[str]:
    """The failures that there is a report of."""
    return sorted(path.name for path in UPSTREAM.iterdir() if path.is_dir())


def changed(case: str) -> list[str]:
    """The files that its change changes, below ``site-packages``."""
    return SOURCE.findall((UPSTREAM / case / "change.patch").read_text("utf-8"))


def package(case: str) -> str:
    """The package that its change changes."""
    (found,) = {name.partition("/")[0] for name in changed(case)}
    return found


def stack_of(case: str) -> str:
    """Where it is reproduced."""
    return STACKS.get(package(case), STACK)


def overlaid(case: str, stack: Stack, folder: Path) -> Path:
    """A folder for ``PYTHONPATH`` that holds the installed package, changed as the report asks for.

    Raises:
        CalledProcessError: the change does not apply to what is installed.
    """
    (site,) = stack.folder.glob("lib/python3.*/site-packages")
    subprocess.run(["cp", "-rs", site / package(case), folder], check=True)
    for name in changed(case):
        (folder / name).unlink()
        shutil.copy(site / name, folder / name)
    text = re.sub(
        rb"^(--- a|\+\+\+ b)/src/", rb"\1/", (UPSTREAM / case / "change.patch").read_bytes(), flags=re.M
    )
    words = ["patch", "--strip=1", "--fuzz=0", "--batch", "--directory", str(folder)]
    subprocess.run(words, input=text, check=True, capture_output=True)
    return folder
