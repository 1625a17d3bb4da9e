"""Runs chosen cases, bare and patched, in processes and a folder that are gone afterwards."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vlmpatch.tools.cases import Case
from vlmpatch.tools.lab import FOLDER, Cell, within, write_cells
from vlmpatch.tools.run import INJECT
from vlmpatch.tools.verify import room
from vlmpatch.tools.verify.ending import Verdict, judge, last_line, said_itself
from vlmpatch.tools.verify.signals import Signals
from vlmpatch.tools.view.language import Words

TOLERANCE = {"cpu": 1e-5, "cuda": 5e-2}  # relative; bfloat16 on a GPU
LIMIT = 180.0  # seconds of a quiet machine without a word from a process until it counts as stuck
CHUNK = 1 << 16  # bytes, what a pipe holds
GONE = 5.0  # such seconds for killed processes to be gone; where nobody reaps them they never are


def try_cases(chosen: Sequence[Case], device: str, words: Words) -> list[Verdict]:
    """Run every case bare and patched; all of a side share one import of what is installed.

    Raises:
        NoRoom: the disk is full; nothing is then said of any patch.
    """
    cells = list(dict.fromkeys(case.cell for case in chosen))
    measures = list(dict.fromkeys(cell.reference for cell in cells))
    by_off = {
        off: list(dict.fromkeys(case.cell for case in chosen if case.without == off))
        for off in dict.fromkeys(case.without for case in chosen)
    }
    progress = Progress(len(measures) + 2 * len(cells), words)
    room.require(len(chosen))
    with Signals() as signals, signals.owned(_folder, _take_away) as made:
        side = Side(Path(made.name), len(chosen), progress, signals)
        try:
            bare = side.run("bare", [*measures, *cells])
            patched = {
                off: side.run(f"patched{number}", own, off)
                for number, (off, own) in enumerate(by_off.items())
            }
        finally:
            progress.end()
    tolerance = TOLERANCE[device]
    return [
        Verdict(case, judge(bare, case.cell, tolerance), judge(patched[case.without], case.cell, tolerance))
        for case in chosen
    ]


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="vlmpatch-verify-", ignore_cleanup_errors=True)


def _take_away(folder: tempfile.TemporaryDirectory[str]) -> None:
    folder.cleanup()


class Side(NamedTuple):
    """What the runs of a side share, with and without vlmpatch.

    Attributes:
        folder: what is written lies below it.
        cases: how many there are in all.
        progress: is told of each run.
        signals: own what must be gone when one comes.
    """

    folder: Path
    cases: int
    progress: Progress
    signals: Signals

    def run(self, side: str, cells: Sequence[Cell], without: Sequence[str] = ()) -> dict[str, Any]:
        """Run ``cells`` in a process of their own, ``without`` these patches; what each reports, by its id.

        Raises:
            NoRoom: the disk ran full.
        """
        said: list[str] = []
        try:
            reports = self._reports(side, cells, without, said)
        except OSError as error:
            if error.errno not in room.FULL:
                raise
            said.append(str(error))
        room.recognise(self.folder, said, self.cases)
        return reports

    def _reports(
        self, side: str, cells: Sequence[Cell], without: Sequence[str], said: list[str]
    ) -> dict[str, Any]:
        out = self.folder / side
        out.mkdir()
        write_cells(out / "cells.json", list(cells))
        environ = environment(os.environ, self.folder, cells[0].device)
        if without:
            environ["VLMPATCH_DISABLE"] = ",".join(filter(None, [environ.get("VLMPATCH_DISABLE"), *without]))
        reports: dict[str, Any] = {}
        with open(out / "log", "w") as log:
            start = functools.partial(launched, self._command(side, cells, out), self.folder, environ, log)
            with self.signals.owned(start, ended) as process:
                self.progress.side(side)
                for line in spoken(process, self.signals):
                    if line.startswith('{"id": '):
                        # Logs are read now: the folder is gone when the table is made.
                        report = _with_logs(json.loads(line))
                        reports[report["id"]] = report
                        said += [str(report["error"]), report["log"]]
                        self.progress.done()
        if len(reports) < len(cells):
            said.append(_text(str(out / "log")))
            reports[""] = {"error": last_line(said[-1])}
        return reports

    def _command(self, side: str, cells: Sequence[Cell], out: Path) -> list[str]:
        models = [f"{kind}={self.folder / kind}" for kind in sorted({cell.kind for cell in cells})]
        return [
            *(sys.executable, "-m", "vlmpatch_lab.run", str(out / "cells.json"), "--out", str(out), "--make"),
            *(["--patched"] if side != "bare" else []),
            *("--reference", str(self.folder / "bare"), "--models", *models),
        ]


def _with_logs(report: dict[str, Any]) -> dict[str, Any]:
    logs = [_text(rank.get("log", "")) for rank in report["ranks"]]
    return {**report, "log": "".join(logs), "error": said_itself(report, logs)}


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def launched(
    command: list[str], folder: Path, environ: Mapping[str, str], log: Any
) -> subprocess.Popen[bytes]:
    """A process that leads a group of its own."""
    return subprocess.Popen(
        command,
        env=environ,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[bytes]) -> None:
    """End the whole group, and wait until it is gone: what still runs writes to a folder that must go."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    within(GONE, functools.partial(_gone, process.pid))
    if process.stdout is not None:
        process.stdout.close()


def _gone(group: int, seconds: float) -> bool:
    """Whether no process of ``group`` is left, within so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def spoken(process: subprocess.Popen[bytes], signals: Signals) -> Iterator[str]:
    """The lines a process prints, until it ends or has said nothing for long.

    Nothing here waits for a line without end: a signal that comes just before a read that blocks is not
    heard until the read returns.
    """
    if process.stdout is None:
        return
    with selectors.DefaultSelector() as pipe:
        pipe.register(process.stdout, selectors.EVENT_READ)

        def ready(seconds: float) -> bool:
            signals.obey()
            return bool(pipe.select(seconds))

        rest = b""
        while within(LIMIT, ready):
            some = os.read(process.stdout.fileno(), CHUNK)
            if not some:
                return
            *lines, rest = (rest + some).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)


def environment(environ: Mapping[str, str], folder: Path, device: str) -> dict[str, str]:
    """A run's environment: bare of vlmpatch unless asked for, and writing to ``folder`` alone."""
    launch = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {name: value for name, value in environ.items() if name not in (*launch, "VLMPATCH_WATCH")}
    path = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != INJECT]
    path.insert(0, str(FOLDER.resolve()))
    caches = (
        "TRITON_CACHE_DIR",
        "TORCH_EXTENSIONS_DIR",
        "HF_HOME",
        "HF_MODULES_CACHE",
        "TORCHINDUCTOR_CACHE_DIR",
    )
    return {
        **kept,
        **{name: str(folder / "cache" / name) for name in caches},
        "TMPDIR": str(folder),
        **({"DS_ACCELERATOR": "cpu"} if device == "cpu" else {}),
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # torch 2.6 starts its compilers on import, and they outlive it
        "HF_HUB_OFFLINE": "1",
        # Asking the driver whether there is a GPU must not start CUDA before the ranks are forked.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }


class Progress:
    """One line on standard error that counts, where a person looks at it."""

    def __init__(self, total: int, words: Words) -> None:
        self.total, self.count, self.words = total, 0, words
        self.name = ""
        self.shown = sys.stderr.isatty()

    def side(self, name: str) -> None:
        """``bare`` or ``patched`` begins."""
        self.name = self.words("without vlmpatch") if name == "bare" else self.words("with vlmpatch")
        self._say(self.words("starting"))

    def done(self) -> None:
        """One more run is over."""
        self.count += 1
        self._say()

    def end(self) -> None:
        """Take the line away."""
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def _say(self, more: str = "") -> None:
        if self.shown:
            print(
                f"\r\033[K{self.count}/{self.total} {self.name} {more}", end="", file=sys.stderr, flush=True
            )
