"""Runs many small programs in children of one interpreter that has imported the stack.

    python -m tests.innocents.warm [--patched] [--import NAME …] --out DIR PROGRAM …

runs inside a stack's environment. ``--patched`` imports vlmpatch before anything else, as a user would.
Each program gets a folder with its files, a process of its own and a time limit; its output, errors, exit
code and the patches that failed in it go to ``DIR/NAME.json``: one that failed harms nobody and proves
nothing.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import json
import os
import runpy
import shutil
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NoReturn

from vlmpatch_lab.patience import Patience

LIMIT = 60.0
FAILED = "failed.json"
HELPERS = [Path(__file__).with_name(name) for name in ("tiny.py", "llama.py", "answers.py")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.innocents.warm")
    parser.add_argument("programs", nargs="+", type=Path)
    parser.add_argument("--patched", action="store_true")
    parser.add_argument("--import", dest="imports", nargs="*", default=[])
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    if asked.patched:
        import vlmpatch  # noqa: F401
    for name in asked.imports:
        importlib.import_module(name)
    for program in asked.programs:
        result = run(program, asked.out / program.stem, patched=asked.patched)
        (asked.out / f"{program.stem}.json").write_text(json.dumps(result))


def files_of(program: Path) -> dict[str, str]:
    """The files of a program: ``=== NAME`` begins each."""
    _, *parts = program.read_text(encoding="utf-8").split("\n=== ")
    return {name.strip(): text for name, _, text in (part.partition("\n") for part in parts)}


def run(program: Path, folder: Path, *, patched: bool) -> dict[str, Any]:
    """One program in a child of this process."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in files_of(program).items():
        path = folder / "program" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for helper in HELPERS:
        shutil.copy(helper, folder / "program" / helper.name)
    started = time.monotonic()
    gc.freeze()  # a program that collects garbage must not go through all of the stack
    pid = os.fork()
    if pid == 0:
        if patched:
            atexit.register(_write_failed, folder / FAILED)
        _become(folder)
    code = _waited_for(pid)
    words = {name: (folder / name).read_text(errors="replace") for name in ("stdout", "stderr")}
    written = folder / FAILED
    failed = json.loads(written.read_text()) if written.exists() else []
    return {"code": code, "seconds": time.monotonic() - started, "failed": failed, **words}


def _write_failed(path: Path) -> None:
    import vlmpatch

    failed = [id_ for id_, status in vlmpatch.status().items() if status.state == "failed"]
    path.write_text(json.dumps(failed))


def _waited_for(pid: int) -> int:
    patience = Patience(LIMIT)
    while not patience.over():
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become(folder: Path) -> NoReturn:
    """This process is the program now, and ends as one: what it raises goes to the interpreter."""
    os.setpgid(0, 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(folder / "program")
    sys.argv, sys.path[0] = ["main.py"], os.getcwd()
    warnings.resetwarnings()
    warnings.simplefilter("default")
    runpy.run_path("main.py", run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    main()
