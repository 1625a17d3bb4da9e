"""Ranks whose process group still has work when they end it.

    python -m tests.lab.ends

Each rank lets go of a reduction and of what it reduces, and ends: the group's thread is the last to hold it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from vlmpatch_lab import forks
from vlmpatch_lab.ports import free_port
from vlmpatch_lab.ranks import end_process_groups, process_group

LARGE = 3_000_000  # elements: their reduction outlives the call that begins it
LIMIT = 30.0


def main() -> None:
    codes = forks.run(end_with_work_left, world=2, port=free_port(), limit=LIMIT)
    if any(codes):
        raise SystemExit(f"the ranks ended with {codes}")


def end_with_work_left(rank: int, port: int) -> None:
    with process_group(rank, port):
        begin_reduction()
        end_process_groups()


def begin_reduction() -> None:
    dist.all_reduce(torch.ones(LARGE), async_op=True)


if __name__ == "__main__":
    main()
