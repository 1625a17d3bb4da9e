"""``python -m vlmpatch run`` reaches the workers of every launcher; bare, the same workers have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import envs, launch
from vlmpatch_lab.ports import free_port

LAUNCHERS = {
    "torchrun": ["torchrun", "--nproc_per_node", "2", "--master_port", "PORT"],
    "accelerate": [
        "accelerate",
        "launch",
        "--multi_gpu",
        "--num_processes",
        "2",
        "--main_process_port",
        "PORT",
    ],
    "deepspeed": ["deepspeed", "--num_gpus", "2", "--master_port", "PORT"],
}
# One write a line: DeepSpeed starts its workers with -u, and print() would then interleave word by word.
WORKER = """
import os, sys
sys.stdout.write(f"rank {os.environ['RANK']} {'vlmpatch' in sys.modules}\\n")
"""


# That a launcher has no vlmpatch of itself is seen with one of them; a release sees it with all.
OTHERS = [pytest.param(name, False, marks=pytest.mark.slow) for name in ("accelerate", "deepspeed")]


@pytest.mark.parametrize(
    ("launcher", "with_run"), [*((name, True) for name in LAUNCHERS), ("torchrun", False), *OTHERS]
)
def test_workers(launcher: str, with_run: bool, tmp_path: Path) -> None:
    stack = envs.read_stacks()["tf457-ds0182"]
    envs.make(stack)
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    command = [word.replace("PORT", str(free_port())) for word in LAUNCHERS[launcher]]
    prefix = ["python", "-m", "vlmpatch", "run"] if with_run else []
    done = launch.run(stack, [*prefix, *command, script], limit=120)
    assert done.rc == 0, str(done)
    said = sorted(line for line in done.output.splitlines() if line.startswith("rank "))
    assert said == [f"rank 0 {with_run}", f"rank 1 {with_run}"]


KILLED_ONCE = """
import os, signal, sys
attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
sys.stdout.write(f"attempt {attempt} rank {rank} {'vlmpatch' in sys.modules}\\n")
sys.stdout.flush()
if (attempt, rank) == ("0", "1"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_workers_of_a_restart(tmp_path: Path) -> None:
    stack = envs.read_stacks()["tf457-ds0182"]
    envs.make(stack)
    script = tmp_path / "worker.py"
    script.write_text(KILLED_ONCE)
    words = ["torchrun", "--nproc_per_node", "2", "--master_port", str(free_port()), "--max-restarts", "1"]
    done = launch.run(stack, ["python", "-m", "vlmpatch", "run", *words, script], limit=120)
    assert done.rc == 0, str(done)
    said = sorted(line for line in done.output.splitlines() if line.startswith("attempt "))
    assert said[-2:] == ["attempt 1 rank 0 True", "attempt 1 rank 1 True"]
    assert all(line.endswith(" True") for line in said)
    assert not done.left
    assert [path.name for path in tmp_path.iterdir()] == ["worker.py"]
