"""Jobs as torchrun starts them, their ranks forked from one process that has imported the stack.

    python -m tests.lab.forked JOBS.json OUT [MODULE …]

runs inside a stack's environment. vlmpatch is imported first, then the modules; a job then costs what its
ranks do. The jobs share this process's environment. As under torchrun, the job's store is not a rank's and
outlives each; what all ranks print goes to one file, ``OUT/NUMBER``.
"""

from __future__ import annotations

import argparse
import atexit
import dataclasses
import importlib
import json
import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab import launch
from tests.lab.envs import Stack
from tests.lab.launch import Finished
from vlmpatch_lab import forks

LIMIT = 120.0  # seconds a job may take, of a machine with nothing else to do
STACK = ("torch", "transformers.trainer", "peft")
SWIFT = {  # what ms-swift's ranks import, where a release has it
    "swift341": (*STACK, "deepspeed", "swift.llm.train.rlhf", "swift.trainers.rlhf_trainer.dpo_trainer"),
    "swift460": (*STACK, "deepspeed", "swift.pipelines.train.rlhf", "swift.rlhf_trainers.dpo_trainer"),
}


@dataclass(frozen=True)
class Job:
    """A program and how many ranks run it; one rank alone is started without a launcher."""

    words: tuple[str, ...]  # a script, or -m and a module, and its arguments
    world: int = 2
    limit: float = LIMIT


def job_of(command: Sequence[str | Path]) -> Job:
    """What the ranks of ``torchrun --nproc_per_node 2 SCRIPT …`` or ``swift VERB …`` run."""
    first, *rest = map(str, command)
    if first == "swift":
        return Job(("-m", f"swift.cli.{rest[0]}", *rest[1:]))
    return Job(tuple(rest[2:]))


def run(
    stack: Stack,
    jobs: Sequence[Job],
    out: Path,
    *,
    imports: Sequence[str] = STACK,
    env: Mapping[str, str] | None = None,
    gloo: bool = False,
    waiting: bool = False,
    begun: Callable[[Job], object] = lambda job: None,
) -> dict[Job, Finished]:
    """Run ``jobs`` one after the other in forks of one process; ``env`` and so on as for ``launch.run``.

    ``begun`` is told of each as it begins.
    """
    out.mkdir(parents=True, exist_ok=True)
    listed = out / "jobs.json"
    listed.write_text(json.dumps([dataclasses.asdict(job) for job in jobs]))
    command: list[str | Path] = ["python", "-m", "tests.lab.forked", listed, out, *imports]
    limit = LIMIT + sum(job.limit for job in jobs)
    still = list(enumerate(jobs))

    def meanwhile() -> None:
        while still and (out / str(still[0][0])).exists():
            begun(still.pop(0)[1])

    finished = launch.run(
        stack, command, limit=limit, env=env, gloo=gloo, waiting=waiting, meanwhile=meanwhile
    )
    if finished.rc != 0 or finished.left:
        raise RuntimeError(str(finished))
    codes = [line.split()[1:] for line in finished.output.splitlines() if line.startswith("CODES ")]
    return {
        job: dataclasses.replace(
            finished,
            command=job.words,
            rc=next((int(code) for code in ended if code != "0"), 0),
            output=(out / str(number)).read_text(errors="replace"),
        )
        for number, (job, ended) in enumerate(zip(jobs, codes, strict=True))
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.forked")
    parser.add_argument("jobs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("imports", nargs="*")
    asked = parser.parse_args()
    import vlmpatch  # noqa: F401

    for name in asked.imports:
        importlib.import_module(name)
    for number, row in enumerate(json.loads(asked.jobs.read_text())):
        job = Job(**{**row, "words": tuple(row["words"])})
        print("CODES", *run_job(job, asked.out / str(number)), flush=True)


def run_job(job: Job, output: Path) -> list[int | None]:
    """Fork the ranks of one job; returns their exit codes."""
    from torch.distributed import TCPStore

    output.touch()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return forks.run(rank_main, job, output, world=job.world, port=store.port, limit=job.limit)


def rank_main(job: Job, output: Path, rank: int, port: int) -> None:
    """Become a rank of ``job``, as which this process ends."""
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())
    if job.world > 1:
        os.environ |= as_torchrun_says(job.world, rank, port)
    try:
        first, *rest = job.words
        if first == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = [first, *rest], str(Path(first).resolve().parent)
            runpy.run_path(first, run_name="__main__")
    finally:
        # A process of multiprocessing ends without; the watch's last word may be said there.
        atexit._run_exitfuncs()


def as_torchrun_says(world: int, rank: int, port: int) -> dict[str, str]:
    """The variables of a rank on a single host."""
    size, number = str(world), str(rank)
    return {
        "RANK": number,
        "LOCAL_RANK": number,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


if __name__ == "__main__":
    main()
