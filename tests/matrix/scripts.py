"""Runs MiniCPM-V's fine-tune script for the rows that ask for it, many times after one import of a stack."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.lab import envs, launch
from tests.lab.cells import START, Result
from tests.lab.envs import Stack
from tests.matrix import rows
from tests.standin import observe
from tests.standin.cells import Cell as Script
from vlmpatch_lab.run import first_cause

STANDIN = Path(observe.__file__).parent
MODULES = "HF_MODULES_CACHE"  # where transformers copies remote code


def run(stack: Stack, wanted: Sequence[Script], out: Path) -> dict[Script, Result]:
    """Run ``wanted`` with vlmpatch, each after the same run with checkpointing off, its measure."""
    envs.make(stack)
    folder = made(stack)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    ordered = list(dict.fromkeys([*(script.reference for script in wanted), *wanted]))
    (out / "cells.json").write_text(json.dumps([dataclasses.asdict(script) for script in ordered]))
    command: list[str | Path] = ["python", "-m", "tests.standin.observe", out / "cells.json"]
    command += ["--folder", folder, "--out", out]
    limit = START + observe.LIMIT * len(ordered)
    finished = launch.run(stack, command, limit=limit, env={MODULES: str(out / "modules")}, gloo=True)
    lines = [line for line in finished.output.splitlines() if line.startswith('{"cell": ')]
    if finished.rc != 0 or len(lines) != len(ordered):
        raise RuntimeError(str(finished))
    return {script: _result(json.loads(line)) for script, line in zip(ordered, lines, strict=True)}


def made(stack: Stack) -> Path:
    """The stand-in's checkpoint, script and data, made once for this stack's transformers."""
    sources = sorted(path for path in STANDIN.rglob("*") if path.suffix in (".py", ".json"))
    recipe = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:8]
    name = f"standin-{rows.versions(stack)['transformers']}-{recipe}"
    folder = envs.cache_root() / "models" / name
    with envs.locked(folder.with_suffix(".lock")):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            envs.make(stack)
            command: list[str | Path] = ["python", "-m", "tests.standin.make", folder]
            finished = launch.run(stack, command, limit=120, env={MODULES: str(folder / "modules")})
            if finished.rc != 0:
                raise RuntimeError(str(finished))
            (folder / "complete").touch()
    return folder


def _result(report: dict[str, Any]) -> Result:
    errors = [{"ok": not error, "error": error} for error in report["errors"]]
    ended = report["rc"] == [0, 0]
    return Result(
        id=report["cell"],
        ok=ended,
        error=None if ended else first_cause(errors),
        tensors=report.get("tensors", 0),
        missing=tuple(report.get("missing", ())),
        difference=report.get("difference"),
        between_ranks=report.get("between_ranks"),
        losses=(tuple(report.get("losses", ())),),
        patches=report["patches"],
        digests=(),
        log="".join(Path(log).read_text(errors="replace") for log in report["logs"]),
        seconds=report["seconds"],
    )
