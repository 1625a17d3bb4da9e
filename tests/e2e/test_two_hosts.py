"""``deepspeed`` with a hostfile: it goes to each host by pdsh and ssh, and hands on what it names itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.test_launchers import Training, died, is_right
from tests.lab import envs, hosts, launch
from tests.lab.outcomes import READY_TWICE
from vlmpatch_lab.ports import free_port

RUN = ("python", "-m", "vlmpatch", "run")
TRAIN = (launch.ROOT / "tests" / "programs" / "train_hf.py", "--engine", "ddp")
# One write a line, as in test_run.py.
WORKER = """
import os, socket, sys
address = socket.create_connection((os.environ["MASTER_ADDR"], 22)).getsockname()[0]
sys.stdout.write(f"rank {os.environ['RANK']} {address} {socket.gethostname()} {'vlmpatch' in sys.modules}\\n")
"""

pytestmark = pytest.mark.slow
Launch = Callable[..., launch.Finished]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hosts.Hosts]:
    if reason := hosts.why_not():
        pytest.skip(reason)
    with hosts.hosts(tmp_path_factory.mktemp("ssh")) as made:
        yield made


@pytest.fixture
def start(both: hosts.Hosts, tmp_path: Path) -> Launch:
    """Run a script on both hosts, from the first of them, with words before the launcher's."""
    stack = envs.read_stacks()["tf457-ds0182"]
    envs.make(stack)
    (tmp_path / "hostfile").write_text(f"{both.first.address} slots=1\n{both.second.address} slots=1\n")
    # gloo looks for the address that belongs to a host's name, and in a namespace nothing knows it.
    (tmp_path / "environment").write_text("GLOO_SOCKET_IFNAME=eth0\n")

    def run(script: tuple[str | Path, ...], before: tuple[str, ...] = ()) -> launch.Finished:
        places = ("--hostfile", tmp_path / "hostfile", "--no_ssh_check", "--master_addr", both.first.address)
        options = ("--master_port", str(free_port()), "--no_local_rank")
        words = [*before, "deepspeed", *places, *options, *script]
        env = {**both.environ, "DS_ENV_FILE": str(tmp_path / "environment")}
        return launch.run(stack, both.first.words(*words), limit=240, env=env)

    return run


@pytest.mark.parametrize("with_run", [True, False])
def test_workers(with_run: bool, both: hosts.Hosts, start: Launch, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    done = start((script,), before=RUN if with_run else ())
    assert done.rc == 0, str(done)
    said = sorted(line[line.index("rank ") :] for line in done.output.splitlines() if ": rank " in line)
    places = (both.first, both.second)
    assert said == [
        f"rank {number} {host.address} {host.namespace} {with_run}" for number, host in enumerate(places)
    ]


def test_a_training(start: Launch, tmp_path: Path) -> None:
    model = launch.checkpoint(envs.read_stacks()["tf457-ds0182"], "qwen2_vl")

    def trained(name: str, *words: str, before: tuple[str, ...] = ()) -> Training:
        folder = tmp_path / name
        script = (*TRAIN, "--model", model, "--output_dir", folder, *words)
        return Training(start(script, before=before), folder)

    died(trained("bare"), READY_TWICE)
    is_right(trained("patched", before=RUN), trained("right", "--no-checkpointing"))
