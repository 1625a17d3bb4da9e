"""Two ranks of one job, each in an environment of its own: the difference is said, and both go on."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.lab import envs, launch
from vlmpatch_lab.ports import free_port

PROGRAM = """
import vlmpatch
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
sum_ = torch.ones(1)
dist.all_reduce(sum_)
print("sum", int(sum_))
dist.destroy_process_group()
"""


def ranks(*stacks: str, **environ: str) -> list[launch.Finished]:
    port = str(free_port())

    def run(rank: int) -> launch.Finished:
        alone = {"RANK": str(rank), "WORLD_SIZE": str(len(stacks)), "LOCAL_RANK": "0"}  # a node each
        env = {**alone, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **environ}
        stack = envs.read_stacks()[stacks[rank]]
        return launch.run(stack, ["python", "-W", "ignore", "-c", PROGRAM], limit=120, env=env)

    for name in stacks:
        envs.make(envs.read_stacks()[name])
    with ThreadPoolExecutor(len(stacks)) as pool:
        return list(pool.map(run, range(len(stacks))))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stacks", "environ", "said"),
    [
        (("tf457-ds0182", "tf457-ds0198"), {}, r"deepspeed 0\.1[89]\.[28] \(there 0\.1[89]\.[28]\)"),
        (("tf457-ds0182", "tf457-ds0182"), {}, None),
        (("tf457-ds0182", "tf457-ds0198"), {"VLMPATCH_DISABLE": "all"}, None),
    ],
)
def test_two_environments(stacks: tuple[str, ...], environ: dict[str, str], said: str | None) -> None:
    finished = ranks(*stacks, **environ)
    assert all(each.rc == 0 and "sum 2" in each.output for each in finished), "\n".join(map(str, finished))
    warned = [line for each in finished for line in each.output.splitlines() if "differs from rank" in line]
    assert len(warned) == (said is not None), warned
    assert said is None or re.search(said, warned[0])
