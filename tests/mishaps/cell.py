"""What goes wrong in a training and what its script does about it, as data. ``ranks.py`` does it."""

from __future__ import annotations

from dataclasses import dataclass

WORLD = 2
WINDOWS = 5  # that every cell begins; a batch that was skipped makes the last one shorter
SCRIPTS = ("one", "two", "through")  # networks: one; two with a loss each; one that learns through the other


@dataclass(frozen=True)
class Mishap:
    """One thing that happens, once, in the batch ``at`` of a window, and what the script does."""

    # "loss": its value is ``what``. "gradient": the backward makes ``what`` of one. "forward", "outset" (of
    # the backward), "backward", "recompute": ``what`` is raised there.
    where: str = ""
    what: str = ""  # nan, inf, large; error, memory
    ranks: tuple[int, ...] = (0, 1)  # on which it happens; a batch is skipped on every rank
    # "unread" (no backward), "skip" (no step), "zero" (zero_grad and no step), "retry" (zero_grad and once
    # more), "halves" (zero_grad, then the batch in two halves), "step" (as if nothing had happened).
    then: str = "skip"
    by: str = "optimizer"  # whose zero_grad it is: that, "engine" (what is called), "model" (what is within)
    # Before that batch: "freeze", "thaw" (the first layer), "evaluate", "save", "resume" (in a new engine),
    # "reload" (what was saved a window before, into the engine that is there); before the next one:
    # "freeze-after". "leave": in all its window no rank uses the second block.
    before: str = ""
    resumed: int = 0  # in a new engine, before the first batch of that window
    clip: float = 0.0
    optimizer: str = "AdamW"
    overlapped: bool = False  # reductions on a stream of their own that begin late: ``streams.py``
    bucket: int = 0  # of gradients that are reduced together: more than one, so some are when it happens
    script: str = "one"
    scaled: bool = False  # only where a loss is scaled: the step is passed over

    @property
    def retried(self) -> bool:
        return self.then in ("retry", "halves")

    @property
    def alone(self) -> bool:
        """Whether it concerns one rank, which tries again while the others wait for it."""
        return self.retried and len(self.ranks) < WORLD


MISHAPS = {
    "nothing": Mishap(),
    "nan-loss-unread": Mishap("loss", "nan", (1,), "unread"),
    "nan-loss-skipped": Mishap("loss", "nan", (1,)),
    "nan-loss-zeroed": Mishap("loss", "nan", (1,), "zero"),
    "nan-gradient-skipped": Mishap("gradient", "nan", (1,)),
    "nan-gradient-zeroed": Mishap("gradient", "nan", (1,), "zero"),
    "large-loss-skipped": Mishap("loss", "large", (1,)),
    "large-loss-zeroed": Mishap("loss", "large", (1,), "zero"),
    "large-loss-zeroed-by-engine": Mishap("loss", "large", (1,), "zero", by="engine"),
    "large-loss-zeroed-by-model": Mishap("loss", "large", (1,), "zero", by="model"),
    "error-in-forward": Mishap("forward", "error"),
    "error-in-one-forward": Mishap("forward", "error", (1,)),
    "error-at-outset-skipped": Mishap("outset", "error"),
    "error-in-backward-skipped": Mishap("backward", "error"),
    "error-in-backward-zeroed": Mishap("backward", "error", then="zero"),
    "error-in-recompute-zeroed": Mishap("recompute", "error", then="zero"),
    "error-among-buckets-skipped": Mishap("backward", "error", bucket=40),
    "error-among-buckets-zeroed": Mishap("backward", "error", then="zero", bucket=40),
    "memory-in-forward-retried": Mishap("forward", "memory", then="retry"),
    "memory-in-forward-halved": Mishap("forward", "memory", then="halves"),
    "memory-at-outset-retried": Mishap("outset", "memory", then="retry"),
    "memory-at-one-outset-retried": Mishap("outset", "memory", (1,), "retry"),
    "memory-in-backward-retried": Mishap("backward", "memory", then="retry"),
    "memory-in-one-backward-retried": Mishap("backward", "memory", (1,), "retry"),
    "memory-in-backward-halved": Mishap("backward", "memory", then="halves"),
    "memory-in-recompute-retried": Mishap("recompute", "memory", then="retry"),
    "overflow-in-loss": Mishap("loss", "inf", (1,), "step", scaled=True),
    "overflow-in-gradient": Mishap("gradient", "inf", (1,), "step", scaled=True),
    "clipped": Mishap("loss", "large", (1,), "step", clip=0.05),
    "clipped-nan-skipped": Mishap("loss", "nan", (1,), clip=0.05),
    "frozen": Mishap(before="freeze", then="step"),
    "frozen-after-overflow": Mishap("loss", "inf", (1,), "step", before="freeze-after", scaled=True),
    "thawed": Mishap(before="thaw", then="step"),
    "unused": Mishap(before="leave", then="step"),
    "unused-sgd": Mishap(before="leave", then="step", optimizer="SGD"),
    "overlapped": Mishap(then="step", bucket=40, overlapped=True),
    "overlapped-buckets": Mishap(then="step", bucket=80, overlapped=True),
    "evaluated": Mishap(before="evaluate", then="step"),
    "saved": Mishap(before="save", then="step"),
    "resumed": Mishap(before="resume", then="step"),
    "unused-resumed": Mishap(before="leave", then="step", resumed=3),
    "thawed-resumed": Mishap(before="thaw", then="step", resumed=1),
    "reloaded": Mishap(before="reload", then="step"),
    "two-networks": Mishap(script="two"),
    "two-networks-nan-skipped": Mishap("loss", "nan", (1,), script="two"),
    "through-another": Mishap(script="through"),
}
ENGINES = (
    *("ddp", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload"),
    *("zero1_bf16", "zero2_fp16", "zero3_fp16", "fsdp1", "fsdp2"),
)
# One process that sees the samples of both ranks: it does what the script says; it passes over a batch as if
# there had been none; it calls zero_grad then, which drops what the window has so far.
PLAIN = ("plain", "kept", "zeroed")
# In a forward, which therefore takes every rank.
GATHERS = ("zero3", "zero3_offload", "zero3_fp16", "fsdp1", "fsdp2")
SCALES = ("zero2_fp16", "zero3_fp16")
ACCUMULATION = (1, 2)


@dataclass(frozen=True)
class Cell:
    """One training: a mishap under an engine."""

    mishap: str
    engine: str
    accumulation: int

    def __str__(self) -> str:
        return f"{self.mishap}:{self.engine}:{self.accumulation}"

    @classmethod
    def of(cls, text: str) -> Cell:
        mishap, engine, accumulation = text.split(":")
        return cls(mishap, engine, int(accumulation))

    @property
    def it(self) -> Mishap:
        return MISHAPS[self.mishap]

    @property
    def measures(self) -> list[Cell]:
        """What is right: one of these. A batch passed over leaves nothing, and its window is kept or not."""
        passed_over = self.it.where and self.it.then in ("skip", "zero")
        counts = self.it.then == "skip" and self.it.what == "large"  # as in plain torch
        engines: tuple[str, ...] = ("plain",)
        if passed_over and not counts:
            engines = ("kept", "zeroed")
        elif self.it.retried and not self.it.alone:
            engines = ("kept", "plain")
        return [Cell(self.mishap, engine, self.accumulation) for engine in engines]

    @property
    def ranks(self) -> int:
        return 1 if self.engine in PLAIN else WORLD

    @property
    def at(self) -> int:
        """The number of the batch it happens in: the last of the third window, save what begins one."""
        return 3 * self.accumulation - 1

    @property
    def possible(self) -> bool:
        """Whether it says anything there.

        What fails on one rank alone is waited for by the other where a forward gathers; and its zero_grad
        drops that rank's part of a window.
        """
        if self.it.overlapped and self.engine not in ("zero2", "zero2_fp16"):
            return False
        alone = self.it.alone or (self.it.where == "forward" and len(self.it.ranks) < WORLD)
        if (alone and self.engine in GATHERS) or (self.it.alone and self.accumulation > 1):
            return False
        return not self.it.scaled or self.engine in SCALES
