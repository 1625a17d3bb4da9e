"""DDP with a static graph: ``no_sync`` synchronises until a backward has begun."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

patch: Any = importlib.import_module("vlmpatch.patches.torch.ddp_static_graph_accumulation")

SOURCE = """
class _DDPSink:
    def backward(ctx, *gradients):
        if ddp.static_graph and not ddp._static_graph_delay_allreduce_enqueued:
            queue_callback(ddp.reducer._delay_all_reduce)

class DistributedDataParallel:
    def no_sync(self):
        pass

    def _post_forward(self, output):
        if torch.is_grad_enabled() and self.require_backward_grad_sync:
            self.reducer.prepare_for_backward([])
        if self.static_graph and not self._static_graph_delay_allreduce_enqueued:
            output = _DDPSink.apply(output)
"""


class Ddp:
    """torch's, as far as this goes."""

    def __init__(self, static_graph: bool) -> None:
        self.static_graph, self._static_graph_delay_allreduce_enqueued = static_graph, False
        self.require_backward_grad_sync = True

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        self.require_backward_grad_sync = False
        yield
        self.require_backward_grad_sync = True


@pytest.mark.parametrize(
    ("static_graph", "begun", "synchronises"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_it_synchronises_until_a_backward_has_begun(
    static_graph: bool, begun: bool, synchronises: bool
) -> None:
    kind = type("DistributedDataParallel", (Ddp,), {"no_sync": Ddp.no_sync})
    module = ModuleType("torch.nn.parallel.distributed")
    vars(module)["DistributedDataParallel"] = kind
    patch.apply(api.Patch("ddp-static-graph-accumulation", Journal()), module)
    ddp = kind(static_graph)
    ddp._static_graph_delay_allreduce_enqueued = begun
    with ddp.no_sync():
        assert ddp.require_backward_grad_sync is synchronises
    assert ddp.require_backward_grad_sync


def test_what_ends_the_first_backward_is_looked_at() -> None:
    def look(text: str) -> str | None:
        found: str | None = patch.look(api.Code("torch.nn.parallel.distributed", "distributed.py", text))
        return found

    assert look(SOURCE) is None
    assert "begins with a backward" in str(
        look(SOURCE.replace("_static_graph_delay_allreduce_enqueued", "x"))
    )
    asked = "if self.static_graph and self.require_backward_grad_sync and not"
    assert "asks whether" in str(look(SOURCE.replace("if self.static_graph and not", asked)))
    with pytest.raises(api.Unrecognised):
        look("class DistributedDataParallel:\n    pass\n")
