"""One rank of a ZeRO-3 job in which ranks stand still for good and for bad reasons; started by torchrun.

    torchrun … -m tests.programs.watched SCENARIO …

vlmpatch is imported first. ``SECONDS`` stand for the minutes of a real job; with ``WATCHED_PATIENCE=real``
in the environment the watchers have the patience that they have in one, and a pause is of two minutes.
"""

from __future__ import annotations

import builtins
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import vlmpatch

ATTEMPT = os.environ["TORCHELASTIC_RESTART_COUNT"]
REAL = os.environ.get("WATCHED_PATIENCE") == "real"
STILL = 1.0
# Longer than it takes to find ranks that have parted, and to end them; or than a rank must stand still.
SECONDS = 120.0 if REAL else 12 * STILL


def main() -> None:
    import deepspeed
    import torch.distributed as dist

    from vlmpatch_lab.collectives import wait_for_every_collective

    if not REAL:
        in_seconds("deepspeed.zero3_uneven_calls", STILL=STILL)
        in_seconds("_shared.rendezvous", LOOK=0.5, SOON=2.0, WAIT=SECONDS / 2)
    scenarios = sys.argv[1:]
    if scenarios in (["restarted"], ["failed_once"]):
        group_of_an_attempt(told=scenarios == ["failed_once"])
    wait_for_every_collective(like_nccl=scenarios == ["restarted"] and ATTEMPT == "0")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    rank = dist.get_rank()
    for name in scenarios:
        SCENARIOS[name](rank)
        dist.barrier()
        say(f"{name} is over")
    dist.destroy_process_group()
    time.sleep(2 * STILL)  # the watcher looks once more, at a group that is gone
    say("ends")


def in_seconds(module: str, **values: float) -> None:
    """What takes minutes in a real job takes so many seconds here."""
    vars(importlib.import_module(f"vlmpatch.patches.{module}")).update(values)


def group_of_an_attempt(told: bool) -> None:
    """The launcher's store outlives an attempt, and what vlmpatch wrote there with it.

    Gloo reads its peers' addresses from there as well, sometimes those of the attempt before; it gets a
    corner of its own, and vlmpatch, unless ``told``, does not even know that this is another attempt.
    """
    import torch.distributed as dist

    rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    kept = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, is_master=False)
    own = dist.PrefixStore(f"attempt {ATTEMPT}", kept)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=world)
    dist.distributed_c10d._get_default_store = lambda: kept
    if not told:
        os.environ["TORCHELASTIC_RESTART_COUNT"] = "0"


def say(words: str) -> None:
    print(f"[{os.environ['RANK']}] {words}", flush=True)


def engine(group: Any = None) -> Any:
    import deepspeed
    import torch

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            # Of different sizes: where they are equal, different gathers go through unnoticed.
            pairs = ((torch.nn.Linear(8, wide), torch.nn.Linear(wide, 8)) for wide in (8, 16, 32, 64))
            self.layers = torch.nn.ModuleList(torch.nn.Sequential(*pair) for pair in pairs)

        def forward(self, x: Any, leave_out: int = -1) -> Any:
            for number, layer in enumerate(self.layers):
                x = x if number == leave_out else layer(x)
            return x.square().mean()

    torch.manual_seed(0)
    nothing = {"max_live_parameters": 0, "prefetch_bucket_size": 0, "param_persistence_threshold": 0}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3, **{f"stage3_{name}": value for name, value in nothing.items()}},
        "zero_force_ds_cpu_optimizer": False,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "steps_per_print": 1_000_000,
    }
    net = Net()
    more = {} if group is None else {"mpu": Part(group)}
    return deepspeed.initialize(model=net, model_parameters=list(net.parameters()), config=config, **more)[0]


class Part:
    """A part of the world to train in, as Megatron describes it."""

    def __init__(self, group: Any) -> None:
        self.group = group

    def get_data_parallel_group(self) -> Any:
        return self.group

    def get_data_parallel_rank(self) -> int:
        import torch.distributed as dist

        return int(dist.get_rank(self.group))

    def get_data_parallel_world_size(self) -> int:
        import torch.distributed as dist

        return int(dist.get_world_size(self.group))

    def get_model_parallel_group(self) -> Any:
        import torch.distributed as dist

        groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        return groups[dist.get_rank()]

    def get_model_parallel_rank(self) -> int:
        return 0

    def get_model_parallel_world_size(self) -> int:
        return 1

    get_slice_parallel_rank = get_model_parallel_rank
    get_slice_parallel_world_size = get_model_parallel_world_size


def steps(trained: Any, number: int = 2, leave_out: int = -1) -> None:
    import torch

    for _ in range(number):
        trained.backward(trained(torch.ones(1, 8), leave_out))
        trained.step()


def breakpoint_on_one_rank(rank: int) -> None:
    trained = engine()
    steps(trained)
    if rank == 1:
        time.sleep(SECONDS)  # pdb waits for its user
    steps(trained)


def evaluation_on_one_rank(rank: int) -> None:
    """Of a copy that is not partitioned, while the others go on into the next step."""
    import torch

    trained = engine()
    steps(trained)
    if rank == 0:
        copy = torch.nn.Linear(8, 8)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            copy(torch.ones(1, 8))
            time.sleep(0.05)
    steps(trained)


def long_checkpoint(rank: int) -> None:
    """Every rank begins to save; one writes for long."""
    trained = engine()
    steps(trained)
    save, trained._save_zero_checkpoint = trained._save_zero_checkpoint, lambda *_args: None

    def slowly(*args: Any, **kwargs: Any) -> Any:
        time.sleep(SECONDS if rank == 0 else 0)
        return save(*args, **kwargs)

    trained._save_zero_checkpoint = slowly
    trained.save_checkpoint(os.environ["WATCHED_OUT"])
    steps(trained)


def two_engines(rank: int) -> None:
    """One of the world, and two of a part of it each, which are used differently often."""
    import torch.distributed as dist

    whole = engine()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])] if dist.get_world_size() == 4 else [None]
    part = engine(groups[rank // 2]) if groups[0] is not None else engine()
    for number in range(2):
        steps(part, 1 + (rank // 2) * number)
        if rank == 1:
            time.sleep(SECONDS / 2)
        steps(whole, 1)


def two_groups_of_the_same_ranks(rank: int) -> None:
    """Two engines in a group each, of all ranks; one rank stands still between their steps."""
    import torch.distributed as dist

    ranks = list(range(dist.get_world_size()))
    first, second = engine(dist.new_group(ranks)), engine(dist.new_group(ranks))
    for number in range(2):
        steps(first, 1 + number)
        steps(second, 2)
        time.sleep(SECONDS / 2 if rank == number else 0)
    time.sleep(SECONDS)
    steps(first)


def saved_with_work_outstanding(rank: int) -> None:
    """One rank comes late, and what it has started before needs the others only later."""
    import torch
    import torch.distributed as dist

    trained = engine()
    steps(trained)
    other = dist.new_group(list(range(dist.get_world_size())))
    sum_, message = torch.ones(4), torch.ones(4)
    all_reduce = dist.distributed_c10d.all_reduce  # the other one waits (``wait_for_every_collective``)
    if rank == 0:
        started = [dist.isend(message, 1), all_reduce(sum_, group=other, async_op=True)]
        time.sleep(SECONDS)
    trained.save_checkpoint(os.environ["WATCHED_OUT"])
    if rank == 1:
        started = [dist.irecv(message, 0), all_reduce(sum_, group=other, async_op=True)]
    for work in started if rank < 2 else ():
        work.wait()
    steps(trained)


def saved_after_a_stop(rank: int) -> None:
    """The whole process of one rank stands still, its threads too: a debugger, a suspended machine."""
    trained = engine()
    steps(trained)
    if rank == 0:
        stopped_for(SECONDS)
    trained.save_checkpoint(os.environ["WATCHED_OUT"])
    if rank == 1:
        stopped_for(SECONDS)
    steps(trained)


def stopped_for(seconds: float) -> None:
    with subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"]):
        os.kill(os.getpid(), signal.SIGSTOP)


def saved_to_a_slow_disk(rank: int) -> None:
    """One rank writes its part for long, and the others wait for it in a barrier; then all save again."""
    import torch.distributed as dist

    trained = engine()
    for _ in range(2):
        steps(trained)
        time.sleep(SECONDS if rank == 0 else 0)  # a system call that takes its time
        dist.barrier()
        trained.save_checkpoint(os.environ["WATCHED_OUT"])


def saved_where_opening_takes_long(rank: int) -> None:
    """A network file system that answers one rank late, every time it is asked for a file."""
    import torch

    trained = engine()
    steps(trained)
    started = builtins.open, torch.save
    if rank == 0:
        builtins.open, torch.save = (later(function, SECONDS / 4) for function in started)
    for _ in range(2):
        trained.save_checkpoint(os.environ["WATCHED_OUT"])
    builtins.open, torch.save = started
    steps(trained)


def later(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def waited(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return function(*args, **kwargs)

    return waited


def failed_once(rank: int) -> None:
    """One rank dies between two saves of the first attempt; the second attempt goes through."""
    say(f"attempt {ATTEMPT}")
    trained = engine()
    for number in range(2):
        steps(trained)
        time.sleep(3 * STILL if rank == number else 0)
        trained.save_checkpoint(os.environ["WATCHED_OUT"])
        if ATTEMPT == "0" and rank == 1:
            raise RuntimeError("this rank fails once")


def switched_off_on_one_rank(rank: int) -> None:
    """Gathers that one rank has not counted, then a long pause of all."""
    trained = engine()
    steps(trained)
    if rank == 1:
        with vlmpatch.disabled("zero3-uneven-calls"):
            steps(trained)
    else:
        steps(trained)
    steps(trained, 1)
    time.sleep(SECONDS)
    steps(trained)


def restarted(rank: int) -> None:
    """The first time ranks part; the second time one of them stands still for long."""
    say(f"attempt {ATTEMPT}")
    trained = engine()
    if ATTEMPT == "0":
        steps(trained, 1, leave_out=rank)
    steps(trained)
    time.sleep(SECONDS if rank == 1 else 0.0)
    steps(trained)


def saved_late(rank: int) -> None:
    """Every rank saves, one of them after the others have given it up; then all save again."""
    trained = engine()
    steps(trained)
    trained._zero3_consolidated_16bit_state_dict()
    time.sleep(SECONDS if rank == 1 else 0)
    trained._zero3_consolidated_16bit_state_dict()
    steps(trained)
    time.sleep(3 * STILL if rank == 0 else 0)
    trained.save_checkpoint(os.environ["WATCHED_OUT"])


def saved_switched_off_on_one_rank(rank: int) -> None:
    """One rank does not come to a meeting, and then it has come to one less than the others."""
    trained = engine()
    steps(trained)
    if rank == 1:
        with vlmpatch.disabled("zero3-save-on-every-rank"):
            trained.save_checkpoint(os.environ["WATCHED_OUT"])
    else:
        trained.save_checkpoint(os.environ["WATCHED_OUT"])
    for number in range(2):
        time.sleep(3 * STILL if rank == number else 0)
        trained.save_checkpoint(os.environ["WATCHED_OUT"])
        steps(trained)


def saved_by_parts(rank: int) -> None:
    """Two ranks save their model twice while the other two train, and then save once."""
    import torch.distributed as dist

    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    part = engine(groups[rank // 2])
    for number in range(2):
        steps(part, 1 + rank // 2)
        if rank // 2 == 0 or number:
            time.sleep(3 * STILL if rank == 1 else 0)
            part._zero3_consolidated_16bit_state_dict()


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        breakpoint_on_one_rank,
        evaluation_on_one_rank,
        long_checkpoint,
        two_engines,
        two_groups_of_the_same_ranks,
        saved_with_work_outstanding,
        saved_after_a_stop,
        saved_to_a_slow_disk,
        saved_where_opening_takes_long,
        failed_once,
        switched_off_on_one_rank,
        restarted,
        saved_late,
        saved_switched_off_on_one_rank,
        saved_by_parts,
    )
}

if __name__ == "__main__":
    main()
