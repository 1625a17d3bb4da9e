"""One model during its first steps: what its backward reached, what its parameters were after each."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

from vlmpatch.watch.calls import Calls, unreached
from vlmpatch.watch.comparison import Comparison
from vlmpatch.watch.exchange import Exchange, NotTogether, group_of
from vlmpatch.watch.findings import (
    APART,
    ZEROS,
    SilentFailure,
    checkpointed,
    why_unreached,
)
from vlmpatch.watch.parts import part_of, parts
from vlmpatch.watch.refrozen import History
from vlmpatch.watch.untouched import bits
from vlmpatch.watch.untrained import untrained

STEPS = 3  # with one, LoRA's A has no gradient yet: its B is zero
NEVER, ZERO = 0, 1  # a gradient that is not zero is 2


class Watcher:
    """Looks at one model during its first steps.

    Args:
        model: what is trained, without an engine's wrapper around it.
        steps: optimizer steps to look at.
        history: what was chosen to be trained before PEFT had the model.
    """

    def __init__(self, model: Any, steps: int = STEPS, history: History | None = None) -> None:
        self.model = model
        self.left = steps
        self.steps = 0
        self.own: list[SilentFailure] = []  # of this rank's batch
        self.remarks: list[str] = []
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parts = parts(model)
        self.frozen = untrained(model, self.parts, history)
        self.calls: Calls | None = None
        # Name -> whether a gradient other than zero arrived, on the device; absent: none arrived at all.
        self.arrived: dict[str, Any] = {}
        self.partitioned = any(hasattr(parameter, "ds_id") for parameter in self.trained.values())
        self.exchange = self._exchange()
        self.sums: list[list[int]] = []  # of every step, in the order of the parameters
        self.levels: list[int] = []  # likewise, once the watch is over
        self.pair = None if self.partitioned else Comparison(model, self.trained, self.remarks)
        self.handles = [p.register_hook(self._note(name)) for name, p in self.trained.items()]
        if self.pair is not None:
            self.handles += self.pair.hooks()

    def _exchange(self) -> Exchange | None:
        try:
            group = group_of(self.model)
            return None if group is None else Exchange(group)
        except Exception as error:  # a group without a store, or of a kind of its own
            self._not_compared(str(error) if isinstance(error, NotTogether) else repr(error))
            return None

    def _not_compared(self, reason: str) -> None:
        self.remarks.append(f"the ranks were not compared: {reason}")

    def _note(self, name: str) -> Any:
        def note(gradient: Any) -> None:
            if self.pair is not None and self.pair.busy:
                return
            some = gradient.detach().ne(0).any()
            before = self.arrived.get(name)
            self.arrived[name] = some if before is None else before | some
            if self.pair is not None:
                self.pair.add(name, gradient)

        return note

    def micro_batch_ended(self) -> None:
        """The backward of a micro-batch is over."""
        if self.pair is not None and self.pair.ready:
            if self.pair.looks_again():
                return
            self.own += self.pair.compared()
            self.pair.end()

    def step_ended(self) -> bool:
        """The optimizer has made a step; whether that was the last one to look at."""
        self.micro_batch_ended()
        self.steps += 1
        self.left -= 1
        if self.exchange is not None and not self.partitioned:
            self.sums.append(self._sums())
        if self.calls is None and self.left > 0 and (idle := unreached(self.parts, self.arrived)):
            self.calls = Calls(self.model, idle)
        if self.left <= 0:
            self.end()
        return self.left <= 0

    def end(self) -> None:
        """Take every hook away."""
        self.levels = self.levels or self._levels()
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        if self.pair is not None:
            self.pair.end()
        if self.calls is not None:
            self.calls.end()
        self.arrived.clear()

    def report(self) -> Report:
        """What this rank has seen."""
        return Report(
            names=zlib.crc32(" ".join(self.trained).encode()),
            steps=self.steps,
            levels=self.levels,
            sums=self.sums,
            well=not self.own,
        )

    def findings(self, reports: list[Report]) -> list[SilentFailure]:
        """What the reports of all ranks, or this one's alone, show together."""
        return [*self.frozen, *self._apart(reports), *self._unreached(reports)]

    def _apart(self, reports: list[Report]) -> list[SilentFailure]:
        """The first step after which ranks held different parameters."""
        for step, sums in enumerate(zip(*(report.sums for report in reports), strict=False), start=1):
            each = zip(self.trained, *sums, strict=True)
            if names := tuple(name for name, *values in each if len(set(values)) > 1):
                return [SilentFailure(f"after step {step} the ranks hold different parameters", names, APART)]
        return []

    def _unreached(self, reports: list[Report]) -> list[SilentFailure]:
        """What no rank's backward reached, and what got zeros on every rank."""
        if not self.steps:
            return []
        highest = [max(levels) for levels in zip(*(report.levels for report in reports), strict=True)]
        seen = dict(zip(self.trained, highest, strict=True))
        found = []
        never = tuple(name for name, level in seen.items() if level == NEVER)
        if never:
            what = f"in {self.steps} steps the backward never reached {len(never)} of {len(self.trained)}"
            found.append(SilentFailure(f"{what} trainable parameters", never, self._why(never)))
        zero = tuple(name for name, level in seen.items() if level == ZERO and not _awaits_its_pair(name))
        if zero:
            what = f"in {self.steps} steps {len(zero)} trainable parameters got nothing but zeros"
            found.append(SilentFailure(what, zero, ZEROS))
        return found

    def _why(self, never: tuple[str, ...]) -> str:
        """The likely cause, from how their parts were called where that was looked at."""
        parts_ = set(map(part_of, never))
        if self.calls is not None and (cause := self.calls.cause(parts_, bool(checkpointed(self.model)))):
            return cause
        return why_unreached(self.model, never)

    def _levels(self) -> list[int]:
        arrived = map(self.arrived.get, self.trained)
        return [NEVER if some is None else ZERO + int(some) for some in arrived]

    def _sums(self) -> list[int]:
        """Of the bits of every parameter; experts of which each rank holds others count as alike."""
        alike = (getattr(parameter, "allreduce", True) for parameter in self.trained.values())
        return [
            zlib.crc32(str(int(bits(parameter))).encode()) if same else 0
            for parameter, same in zip(self.trained.values(), alike, strict=True)
        ]


class Report(NamedTuple):
    """What a rank has seen of one training, in the order of its trainable parameters."""

    names: int  # a digest of what they are called
    steps: int
    levels: list[int]  # whether the backward reached them
    sums: list[list[int]]  # of every step: what they were after it
    well: bool  # nothing wrong was found on this rank alone


def _awaits_its_pair(name: str) -> bool:
    """LoRA's A has a zero gradient as long as B is zero, which a warm-up from zero keeps it."""
    return "lora_A" in name or "lora_embedding_A" in name
