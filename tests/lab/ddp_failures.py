"""DDP after a backward that raised and was passed over: what the next steps come to (F49).

    python -m tests.lab.ddp_failures tf457-ds0182 [--patched] [--times 5] [--only both-among]

Two ranks train a small network; in the second of four steps a backward raises, on one rank or on both, before
any bucket or among them, the error is caught, ``zero_grad`` called and the step left out. Printed is how the
training ends on each rank: ``right`` (the weights of one process that leaves the step out), ``apart``
(ended, with other weights), the error, or ``waits``. Some of it is chance: ``--times`` runs each case again.
``reset`` calls ``model.reducer._reset_state()`` too, in bare runs alone. With ``--inside`` it runs in the
stack itself.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab import envs, launch
from vlmpatch_lab import forks

RANKS, STEPS, FAILING = 2, 4, 1
LIMIT = 20.0  # seconds; a rank that is not back by then waits for ever
ASKED = 60.0  # seconds more: vlmpatch waits for a rank to say that it failed, too
FIRST = "static_graph_first"  # the first of the steps fails: the reducer notes in it what later ones use
KINDS: dict[str, dict[str, bool]] = {
    "plain": {},
    "bucket_view": {"gradient_as_bucket_view": True},
    "find_unused_parameters": {"find_unused_parameters": True},
    "static_graph": {"static_graph": True},
    FIRST: {"static_graph": True},
    "no_sync": {},
}
Endings = dict[str, list[str]]  # of each rank


class Failing(NamedTuple):
    """Which failure is tried."""

    kind: str
    ranks: str  # "both" or "one"
    place: str  # "first": before any bucket; "among": after some
    reset: bool

    @property
    def id(self) -> str:
        return "-".join([self.kind, self.ranks, self.place, *(["reset"] if self.reset else [])])

    @property
    def at(self) -> int:
        """The step that fails."""
        return 0 if self.kind == FIRST else FAILING


CASES = [
    Failing(*each) for each in itertools.product(KINDS, ("both", "one"), ("first", "among"), (False, True))
]


def chosen(only: str, patched: bool) -> list[Failing]:
    return [case for case in CASES if only in case.id and not (patched and case.reset)]


def perform(stack_name: str, only: str = "", times: int = 1, patched: bool = False) -> Endings:
    """How each case ends, in the stack."""
    stack = envs.read_stacks()[stack_name]
    asked = ["--only", only, "--times", str(times), *(["--patched"] if patched else [])]
    limit = (LIMIT + ASKED) * (3 + times * len(chosen(only, patched)))
    with tempfile.TemporaryDirectory(prefix="failures-") as out:
        command: list[str | Path] = ["python", "-W", "ignore", "-m", "tests.lab.ddp_failures", stack_name]
        finished = launch.run(stack, [*command, "--inside", out, *asked], limit=limit)
        if finished.rc != 0:
            raise RuntimeError(str(finished))
        found: Endings = json.loads((Path(out) / "endings").read_text())
    return found


# --- in the stack -----------------------------------------------------------------------------------


def network() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(4)))


def loss_of(model: Any, step: int, rank: int) -> Any:
    import torch

    return model(torch.full((2, 6), 1.0 + step + rank / 4)).pow(2).mean()


def right(failing: int) -> list[Any]:
    """The weights of one process that sees both ranks' samples and leaves the step ``failing`` out."""
    import torch

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        if step != failing:
            sum(loss_of(model, step, rank) / RANKS for rank in range(RANKS)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


@contextlib.contextmanager
def raising(network: Any, place: str) -> Iterator[None]:
    """A backward in it raises: at the last layer's input, which comes first, or at the second's."""

    def fail(*_: Any) -> None:
        raise MemoryError("out of memory")

    layer = network[-1] if place == "first" else network[1]
    parameter = layer.weight.register_hook(fail)
    try:
        yield
    finally:
        parameter.remove()


def _rank(out: Path, case: Failing, rank: int, port: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    sys.stdout = sys.stderr = (out / f"log{rank}").open("w")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    own = network()
    small = 2e-4  # MiB: a layer a bucket
    model = torch.nn.parallel.DistributedDataParallel(own, bucket_cap_mb=small, **KINDS[case.kind])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ending = "right"
    try:
        for step in range(STEPS):
            if step != case.at:
                loss_of(model, step, rank).backward()
                optimizer.step()
            else:
                fails = case.ranks == "both" or rank == 0
                apart = model.no_sync() if case.kind == "no_sync" else contextlib.nullcontext()
                with apart, raising(own, case.place) if fails else contextlib.nullcontext():
                    try:
                        loss_of(model, step, rank).backward()
                    except MemoryError:
                        if case.reset:
                            model.reducer._reset_state()
            optimizer.zero_grad()
        pairs = zip(own.parameters(), torch.load(out / f"right{case.at}"), strict=True)
        if not all(torch.allclose(mine, theirs, atol=1e-6) for mine, theirs in pairs):
            ending = "apart"
    except RuntimeError as error:
        ending = str(error).split(".")[0][:70]
    (out / f"ending{rank}").write_text(ending)
    dist.destroy_process_group()


def inside(out: Path, cases: Sequence[Failing], times: int, limit: float) -> Endings:
    """Every case, each in ranks of its own."""
    import torch

    from vlmpatch_lab.ports import free_port

    for step in {case.at for case in cases}:
        torch.save(right(step), out / f"right{step}")
    endings: Endings = {}
    for case, time in itertools.product(cases, range(times)):
        places = [out / f"ending{rank}" for rank in range(RANKS)]
        for place in places:
            place.unlink(missing_ok=True)
        forks.run(_rank, out, case, world=RANKS, port=free_port(), limit=limit)
        name = f"{case.id}:{time}"
        endings[name] = [place.read_text() if place.exists() else "waits" for place in places]
        print(name, *endings[name], sep=" | ", flush=True)
    return endings


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.ddp_failures")
    parser.add_argument("stack", choices=envs.read_stacks())
    parser.add_argument("--patched", action="store_true", help="import vlmpatch first")
    parser.add_argument("--times", type=int, default=1, help="of each case")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--inside", type=Path, metavar="OUT")
    asked = parser.parse_args()
    if asked.inside is None:
        print(json.dumps(perform(asked.stack, asked.only, asked.times, asked.patched), indent=1))
        return
    if asked.patched:
        import vlmpatch  # noqa: F401
    limit = LIMIT + (ASKED if asked.patched else 0)
    ended = inside(asked.inside, chosen(asked.only, asked.patched), asked.times, limit)
    (asked.inside / "endings").write_text(json.dumps(ended))


if __name__ == "__main__":
    main()
