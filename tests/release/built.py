"""A wheel and a source distribution, built twice: the same bytes, and what the checkers want."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tests.release.proofs import ROOT, git


class Refused(Exception):
    """What is built is not fit to be published, and why."""


def epoch(root: Path = ROOT) -> str:
    """SOURCE_DATE_EPOCH of a release: when its commit was made."""
    return os.environ.get("SOURCE_DATE_EPOCH") or git(root, "log", "-1", "--format=%ct").strip()


def build(folder: Path, date: str, root: Path = ROOT) -> dict[str, str]:
    """Build twice below ``folder``, from the files under version control; the sums, by file name.

    The second one is built elsewhere, with other hash seeds, another time zone and other permissions for new
    files: none of that may be seen in the result.

    Raises:
        Refused: it is.
    """
    sums, origin = [], root
    for turn, (seed, zone, umask) in enumerate((("1", "UTC", 0o022), ("2", "Asia/Tokyo", 0o077)), 1):
        source = folder / f"build-{turn}"
        git(root, "clone", "--quiet", "--no-hardlinks", str(origin), str(source))
        origin = source  # the same commit, whatever is committed meanwhile
        env = {**os.environ, "SOURCE_DATE_EPOCH": date, "PYTHONHASHSEED": seed, "TZ": zone}
        words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / str(turn))]
        done = subprocess.run(words, cwd=source, env=env, capture_output=True, text=True, umask=umask)
        if done.returncode:
            said = done.stdout[-2000:] + done.stderr[-2000:]
            raise Refused(f"the build ended with {done.returncode}:\n{said}")
        made = sorted((folder / str(turn)).iterdir())
        sums.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made})
    if sums[0] != sums[1]:
        unlike = sorted(name for name in sums[0] if sums[0][name] != sums[1].get(name))
        raise Refused(f"two builds of one commit differ: {', '.join(unlike)}")
    return sums[0]


def check(folder: Path) -> None:
    """What PyPI would refuse, and what does not belong into a wheel.

    Raises:
        Refused: one of the two objects.
    """
    files = [str(path) for path in sorted((folder / "1").iterdir())]
    wheels = [path for path in files if path.endswith(".whl")]
    for words in (["twine", "check", "--strict", *files], ["check_wheel_contents", *wheels]):
        done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise Refused(f"{words[0]} objects:\n{done.stdout}{done.stderr}")
