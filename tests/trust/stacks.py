"""Sends a job to a stack and reads what its worker found."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.lab import envs, launch
from tests.trust.worker import PROGRESS, REMOTE
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read


def targets() -> list[str]:
    """Every target of the catalog; remote code as a name that matches its pattern."""
    named = dict.fromkeys(
        target for entry in read(default_path()).entries.values() for target in entry.targets
    )
    return [REMOTE if "modeling_minicpmv" in target else target for target in named if _testable(target)]


def _testable(target: str) -> bool:
    return "*" not in target or "modeling_minicpmv" in target


def run(stack: str, limit: float, **job: Any) -> list[dict[str, Any]]:
    """What the worker of ``stack`` reports, one dictionary a target."""
    chosen = envs.read_stacks()[stack]
    envs.make(chosen)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "modules").mkdir()
        job |= {"targets": targets(), "folder": f"{folder}/modules"}
        (Path(folder) / "job.json").write_text(json.dumps(job))
        command = ["python", "-W", "ignore", "-m", "tests.trust.worker", f"{folder}/job.json"]
        done = launch.run(chosen, command, limit=limit, meanwhile=_Shown(stack, Path(folder) / PROGRESS))
    reports = [json.loads(line) for line in done.output.splitlines() if line.startswith('{"')]
    if done.rc != 0 or not reports:
        raise RuntimeError(str(done))
    return reports


class _Shown:
    """Says on standard error how far the worker is, each time that it is further."""

    def __init__(self, stack: str, file: Path) -> None:
        self._stack, self._file = stack, file
        self._said = ""

    def __call__(self) -> None:
        now = self._file.read_text() if self._file.exists() else ""
        if now != self._said:
            print(f"{self._stack}: {now}", file=sys.stderr, flush=True)
            self._said = now
