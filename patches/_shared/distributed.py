"""What a patch asks of torch.distributed: which rank this is, how many there are, and where they can talk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

ABSENT = "-absent-"  # no key of ours has this value


def rank() -> int:
    """This process's rank; 0 where no processes train together."""
    dist = _begun()
    return 0 if dist is None else int(dist.get_rank())


def world() -> int:
    """How many processes train together; 1 without torch.distributed."""
    dist = _begun()
    return 1 if dist is None else int(dist.get_world_size())


def _begun() -> Any:
    """``torch.distributed``, once there is a process group."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def largest(number: int, groups: Iterable[Any], device: Any) -> int:
    """The largest ``number`` of all ranks of ``groups``: one all-reduce of one integer for each."""
    return largest_of_each([number], groups, device)[0]


def largest_of_each(numbers: Sequence[int], groups: Iterable[Any], device: Any) -> list[int]:
    """Of each of ``numbers`` the largest of all ranks of ``groups``: one all-reduce for each group."""
    import torch

    found: list[int] = reduced_to_largest(torch.tensor(numbers), groups, device).tolist()
    return found


def reduced_to_largest(values: Any, groups: Iterable[Any], device: Any) -> Any:
    """Of each number in a tensor the largest of all ranks of ``groups``.

    Args:
        values: of any shape, anywhere.
        groups: process groups.
        device: where they talk, if they can: NCCL takes no tensor of a CPU, where offloaded weights lie.
    """
    import torch.distributed as dist

    for group in groups:
        values = values.to(_where_it_talks(group, device))
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=group)
    return values


def _where_it_talks(group: Any, device: Any) -> Any:
    known = getattr(group, "_device_types", None) or [device]
    return device if any(each.type == device.type for each in known) else known[0]


def job_store() -> Any:
    """The store that started the job. It outlives a restart by torchrun: see ``run_prefix``."""
    return sys.modules["torch.distributed"].distributed_c10d._get_default_store()


def there(store: Any, key: str) -> bool:
    """Whether ``key`` has been set in ``store``, without waiting; before torch 2.3 it cannot be asked."""
    if hasattr(store, "check"):
        return bool(store.check([key]))
    return bool(store.compare_set(key, ABSENT, ABSENT) != ABSENT.encode())


def run_prefix() -> str:
    """What begins every key of this run in the job's store."""
    run = [os.environ.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT")]
    return "/".join(["vlmpatch", *run])


def group_name(group: Any) -> str:
    """What torch calls a process group: its ranks met under that name, and no other group here has it."""
    return str(sys.modules["torch.distributed"].distributed_c10d._world.pg_names[group])


def named(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0, 1`` or, of many, ``ranks 0, 1, 2, 3, 4, 5, 6, 7 and 40 more``."""
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
