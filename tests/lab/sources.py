"""Fetch the public repositories whose scripts and programs are tested, at the commits that are on record.

    python -m tests.lab.sources FOLDER [REPOSITORY …]

makes ``FOLDER/OWNER+NAME``, a bare clone of those commits alone; what is there already stays. A
repository that cannot be had is named, and its tests are skipped.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab import launches
from tests.shipped import programs

ADDRESS = "https://github.com/{}"


def wanted() -> dict[str, list[str]]:
    """Commits by repository: of the scripts on record, and of the programs."""
    found: dict[str, list[str]] = {}
    known, _ = programs.read()
    for shipped in (*launches.read(), *(program.source for program in known.values())):
        commits = found.setdefault(shipped.repository, [])
        if shipped.commit not in commits:
            commits.append(shipped.commit)
    return found


def fetch(folder: Path, asked: Mapping[str, Sequence[str]], address: str = ADDRESS) -> list[str]:
    """Fetch what is not there yet; returns what could not be had, and why."""
    problems = []
    for repository, commits in asked.items():
        clone = folder / repository.replace("/", "+")
        if not clone.exists():
            _git(folder, "init", "--quiet", "--bare", clone.name)
        for commit in commits:
            if _git(clone, "cat-file", "-e", commit).returncode == 0:
                continue
            got = _git(clone, "fetch", "--quiet", "--depth", "1", address.format(repository), commit)
            if got.returncode:
                problems.append(f"{repository} {commit}: {got.stderr.strip()}")
    return problems


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)


def main(folder: Path, repositories: Sequence[str]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    asked = {name: commits for name, commits in wanted().items() if name in repositories or not repositories}
    problems = fetch(folder, asked)
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    print(f"{len(asked)} repositories asked for, {len(problems)} commits not had. Now:")
    print(
        f"VLMPATCH_SOURCES={folder} make test-all FILES='tests/e2e/test_launches_shipped.py "
        "tests/e2e/test_shipped_programs.py'"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
