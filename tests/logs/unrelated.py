"""Ways to fail that are none of vlmpatch's, on two ranks: ``torchrun … -m tests.logs.unrelated WAY``."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist


def data(rank: int) -> Any:
    rows: list[dict[str, str]] = [{"image": "a.png"}, {"text": "no picture"}]
    return rows[rank]["image"]


def shapes(rank: int) -> Any:
    return torch.ones(2, 3) @ torch.ones(4, 2)


def memory(rank: int) -> Any:
    return torch.empty(1 << 50) if rank else None


def package(rank: int) -> Any:
    import no_such_package  # type: ignore[import-not-found]

    return no_such_package


def caught(rank: int) -> Any:
    """A sample is passed over with a traceback in the log; the run ends for another reason."""
    import traceback

    try:
        data(1)
    except KeyError:
        traceback.print_exc()
    for step in range(3):
        print({"loss": 1.0 / (step + 1), "epoch": step / 3}, flush=True)
    return int("not a number")


WAYS = {way.__name__: way for way in (data, shapes, memory, package, caught)}


def main() -> None:
    dist.init_process_group("gloo")
    try:
        WAYS[sys.argv[1]](dist.get_rank())
        dist.barrier()  # the other rank waits here for one that is gone
    finally:
        if sys.exc_info()[0] is None:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
