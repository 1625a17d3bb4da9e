"""Runs commands in a stack's environment, as a user would, with nothing left behind.

Every launch has a time limit and its own process group; ``torchrun`` gives its workers groups of
their own, so what a launch left alive is found by a mark in its environment and ended too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import families
from tests.lab import envs
from tests.lab.envs import Stack
from vlmpatch_lab.patience import within
from vlmpatch_lab.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
INTEL = Path(__file__).with_name("intel")  # what DeepSpeed 0.12 asks for on a CPU
STARTUP = Path(__file__).with_name("startup")  # holds a sitecustomize
BACKWARD = "VLMPATCH_LAB_BACKWARD"
MARK = "VLMPATCH_LAB_LAUNCH"
BESIDE = "VLMPATCH_LAB_BESIDE"  # a folder of packages that a family needs and the stack lacks
# What the caller's shell must not decide: DONTWRITEBYTECODE makes every rank compile transformers
# again, and the rest belongs to the launch below.
DROPPED = (
    *("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"),
)


@dataclass(frozen=True)
class Finished:
    """How a command ended; ``left`` counts the processes of it that had to be ended afterwards."""

    command: tuple[str, ...]
    rc: int
    output: str
    seconds: float
    timed_out: bool
    left: int

    def __str__(self) -> str:
        end = "ran past its limit" if self.timed_out else f"exit status {self.rc}"
        return f"{' '.join(self.command)}\n{end} after {self.seconds:.0f} s\n{self.output[-12_000:]}"


def run(
    stack: Stack,
    command: Sequence[str | Path],
    *,
    limit: float,
    env: Mapping[str, str] | None = None,
    checkout: bool = True,
    gloo: bool = False,
    waiting: bool = False,
    cwd: Path = ROOT,
    meanwhile: Callable[[], object] = lambda: None,
) -> Finished:
    """Run ``command`` (``python``, ``torchrun``, ``swift`` … of that stack) to its end or ``limit``.

    ``limit`` is in seconds of a machine that has nothing else to do (``vlmpatch_lab.patience``).
    ``checkout`` puts this clone on ``PYTHONPATH``; ``gloo`` lets accelerate accept DeepSpeed on a
    machine without an accelerator; ``waiting`` makes its collectives wait, which ZeRO-3 needs there.
    ``meanwhile`` is called now and then while it runs.
    """
    mark = uuid.uuid4().hex
    variables = environment(stack, checkout=checkout, gloo=gloo, waiting=waiting)
    variables |= {**(env or {}), MARK: mark}
    words = tuple(str(word) for word in command)
    program = shutil.which(words[0], path=variables["PATH"]) or words[0]
    started = time.monotonic()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [program, *words[1:]],
            env=variables,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            timed_out = not _ends_within(process, limit, meanwhile)
        finally:
            left = _end(process, mark)
        log.seek(0)
        output = log.read().decode(errors="replace")
    seconds = time.monotonic() - started
    return Finished(words, process.returncode, output, seconds, timed_out, left)


def environment(
    stack: Stack, *, checkout: bool = True, gloo: bool = False, waiting: bool = False
) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if name not in DROPPED}
    variables |= {
        "PATH": f"{stack.python.parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # torch 2.6 starts its compilers on import, and they outlive it
        "DS_ACCELERATOR": "cpu",
        "HF_HUB_OFFLINE": "1",
        BACKWARD: "thread",  # as on a GPU, which is where people train
        "MASTER_PORT": str(free_port()),
    }
    of_the_stack = [INTEL] if any(each.startswith("deepspeed==0.12.") for each in stack.packages) else []
    beside = filter(None, [os.environ.get(BESIDE)])
    folders = [STARTUP, *([ROOT] if checkout else []), *of_the_stack, *beside]
    variables["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    if gloo:
        variables["VLMPATCH_LAB_GLOO"] = "1"
    if waiting:
        variables["VLMPATCH_LAB_WAITING"] = "1"
    return variables


def checkpoint(stack: Stack, kind: str) -> Path:
    """The tiny checkpoint of ``kind`` for this stack's transformers, made once."""
    return checkpoints(stack, [kind])[kind]


def checkpoints(stack: Stack, kinds: Iterable[str]) -> dict[str, Path]:
    """The tiny checkpoints of all ``kinds``, those that are missing made by one process."""
    envs.make(stack)
    folders = {kind: _checkpoint_folder(stack, kind) for kind in kinds}
    with envs.locked(envs.cache_root() / "models" / f"{_transformers(stack)}.lock"):
        missing = {kind: f for kind, f in folders.items() if not (f / "complete").exists()}
        for folder in missing.values():
            shutil.rmtree(folder, ignore_errors=True)
        if missing:
            pairs = [f"{kind}={folder}" for kind, folder in missing.items()]
            command = ["python", "-m", "tests.lab.checkpoints", *pairs]
            finished = run(stack, command, limit=120 + 30 * len(pairs))
            if finished.rc != 0:
                raise RuntimeError(str(finished))
        for folder in missing.values():
            (folder / "complete").touch()
            print(f"[{stack.name}] made {folder}", flush=True)
    return folders


def _checkpoint_folder(stack: Stack, kind: str) -> Path:
    sources = [*families.recipe(kind), Path(__file__).with_name("checkpoints.py")]
    recipe = hashlib.sha256(b"".join(source.read_bytes() for source in sources))
    return envs.cache_root() / "models" / f"{kind}-{_transformers(stack)}-{recipe.hexdigest()[:8]}"


def _transformers(stack: Stack) -> str:
    return next(pin for pin in stack.packages if pin.startswith("transformers==")).partition("==")[2]


def _ends_within(
    process: subprocess.Popen[bytes], limit: float, meanwhile: Callable[[], object] = lambda: None
) -> bool:
    def ended(seconds: float) -> bool:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            meanwhile()
            return False
        return True

    return within(limit, ended)


def _end(process: subprocess.Popen[bytes], mark: str) -> int:
    """End whatever is left of a launch; returns how many processes that were."""
    if process.poll() is None:
        process.terminate()  # torchrun and DeepSpeed's launcher then end their own workers
        if not _ends_within(process, 5):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    left = 0
    for pid in _marked(mark):
        try:
            os.kill(pid, signal.SIGKILL)
            left += 1
        except ProcessLookupError:
            pass
    return left


def _marked(mark: str) -> Iterator[int]:
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in entry.read_bytes().split(b"\0"):
                yield int(entry.parent.name)
        except (OSError, ValueError):
            continue
