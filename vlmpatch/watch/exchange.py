"""Which ranks train a model together, and what each of them has to say, over the job's store.

Nobody waits: a rank leaves its report and goes on; the last to leave one finds all of them. Where one never
comes, nobody does, and nothing more happens.
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
from collections import Counter
from typing import Any

from vlmpatch.watch.ranks import incarnation

KEY = "vlmpatch/watch"

_made: Counter[str] = Counter()


class NotTogether(Exception):
    """Ranks cannot be compared; the text says why."""


def group_of(model: Any) -> Any:
    """The process group that a wrapper of this very model trains it in; None where it has no wrapper.

    A world of several ranks proves nothing: they may train each a model of their own, or one of them alone.

    Raises:
        NotTogether: there is one, and its ranks may differ.
    """
    groups = {id(group): group for wrapper in _wrappers(model) if (group := _group(wrapper)) is not None}
    if len(groups) > 1:
        raise NotTogether("the model is wrapped more than once, for different ranks")
    return next(iter(groups.values()), None)


def _wrappers(model: Any) -> list[Any]:
    """Those of DDP and DeepSpeed that hold ``model``; who is given a model is not told of its wrapper."""
    known = (
        ("torch.nn.parallel.distributed", "DistributedDataParallel"),
        ("deepspeed.runtime.engine", "DeepSpeedEngine"),
    )
    kinds = tuple(cls for module, name in known if (cls := getattr(sys.modules.get(module), name, None)))
    found = [each for each in gc.get_objects() if issubclass(type(each), kinds)] if kinds else []
    return [each for each in found if any(part is model for part in each.modules())]


def _group(wrapper: Any) -> Any:
    if getattr(wrapper, "_comm_hooks", None):
        raise NotTogether("a communication hook decides when gradients are averaged")
    group = getattr(wrapper, "process_group", None) or getattr(wrapper, "data_parallel_group", None)
    return group if group is not None and group.size() > 1 else None


class Exchange:
    """Reports of the ranks of ``group`` on one training.

    Args:
        group: whose every rank makes one, at the same moment of the training.
    """

    def __init__(self, group: Any) -> None:
        import torch.distributed as dist

        ranks = dist.get_process_group_ranks(group)
        self.size, self.place = len(ranks), dist.get_rank(group)
        self.store = dist.distributed_c10d._get_default_store()
        # Ranks that are not at one moment of one training have started unequally many collectives.
        moment = [str(group.group_name), _digest(ranks), str(group._get_sequence_number_for_group())]
        name = "/".join([KEY, *incarnation(), *moment])
        _made[name] += 1
        self.key = f"{name}/{_made[name]}"

    def leave(self, report: dict[str, Any]) -> list[dict[str, Any]]:
        """Leave this rank's report; all of them where it is the last, else nothing."""
        self.store.set(f"{self.key}/{self.place}", json.dumps(report))
        if self.store.add(f"{self.key}/came", 1) != self.size:
            return []
        return [json.loads(self.store.get(f"{self.key}/{place}")) for place in range(self.size)]

    def complete(self) -> bool:
        """Whether every rank has left its report by now."""
        return int(self.store.add(f"{self.key}/came", 0)) >= self.size


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]
