"""``VLMPATCH_WATCH=1``: the first steps of a training are watched for what fails without an error.

    VLMPATCH_WATCH=1 torchrun … train.py        every Trainer of the process (TRL's, ms-swift's, a script's)
    from vlmpatch.tools.watch import WatchCallback
    Trainer(…, callbacks=[WatchCallback()])     this one

Three things are looked at: every trainable parameter is reached by the backward; the ranks hold the same
parameters after the optimizer's step; loss and gradients of the first batch are those of the same batch
with checkpointing off. What is found is a warning with names and the likely cause; nothing is ended and
nothing is changed: the extra forward leaves everything as it was (``untouched``), or is not made. After the
last watched step all hooks are gone.

Ranks are compared where a wrapper of this very model keeps them alike and each of them holds it whole (DDP,
ZeRO-1 and 2), over the job's store, and none is waited for (``exchange``). Under ZeRO-3 every value exists
once, and a second forward would disturb DeepSpeed's record of the order of modules, so there the first check
alone is made.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmpatch.watch.exchange import Exchange, NotTogether, group_of
from vlmpatch.watch.untouched import CannotUndo, bits, untouched

if TYPE_CHECKING:
    from vlmpatch.imports.finder import Hooks
    from vlmpatch.journal.journal import Journal

STEPS = 3  # with one, LoRA's A has no gradient yet: its B is zero
TARGET = "transformers.trainer_callback"
SHOWN = 4  # names in a finding
TOLERANCE = {"float32": 1e-3, "float64": 1e-6}  # relative; other types:
LOW_PRECISION = 5e-2
MEMORY = 0.25  # of what is free, for two copies of the gradients
TOWERS = ("visual", "vision", "vpm")
NEVER, ZERO = 0, 1  # a gradient that is not zero is 2


class SilentFailure(NamedTuple):
    """Something that is wrong: what, with which names, and why it may be so."""

    what: str
    names: tuple[str, ...]
    cause: str

    def __str__(self) -> str:
        shown = ", ".join(self.names[:SHOWN])
        more = f" and {len(self.names) - SHOWN} more" if len(self.names) > SHOWN else ""
        where = f": {shown}{more}" if shown else ""
        return f"{self.what}{where}. Likely cause: {self.cause}"


class Watcher:
    """Looks at one model during its first steps.

    Args:
        model: what is trained, without an engine's wrapper around it.
        steps: optimizer steps to look at.
    """

    def __init__(self, model: Any, steps: int = STEPS) -> None:
        self.model = model
        self.left = steps
        self.steps = 0
        self.own: list[SilentFailure] = []  # of this rank's batch
        self.remarks: list[str] = []
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        # Name -> whether a gradient other than zero arrived, on the device; absent: none arrived at all.
        self.arrived: dict[str, Any] = {}
        self.partitioned = any(hasattr(parameter, "ds_id") for parameter in self.trained.values())
        self.exchange = self._exchange()
        self.sums: list[list[int]] = []  # of every step, in the order of the parameters
        self.levels: list[int] = []  # likewise, once the watch is over
        self.pair = None if self.partitioned else Comparison(self)
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
            self.own += self.pair.compared()
            self.remarks += self.pair.remarks
            self.pair.end()

    def step_ended(self) -> bool:
        """The optimizer has made a step; whether that was the last one to look at."""
        self.micro_batch_ended()
        self.steps += 1
        self.left -= 1
        if self.exchange is not None and not self.partitioned:
            self.sums.append(self._sums())
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
        return [*self._apart(reports), *self._unreached(reports)]

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
            found.append(
                SilentFailure(f"{what} trainable parameters", never, _why_unreached(self.model, never))
            )
        zero = tuple(name for name, level in seen.items() if level == ZERO and not _awaits_its_pair(name))
        if zero:
            what = f"in {self.steps} steps {len(zero)} trainable parameters got nothing but zeros"
            found.append(SilentFailure(what, zero, ZEROS))
        return found

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


class Comparison:
    """The first batch twice: with checkpointing off, and as the training itself runs it.

    Both see the same random numbers. The first is made just before the training's own forward; its
    gradients are asked for by name, so that no engine's hook sees them.
    """

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.busy = self.ready = self.over = False
        self.forwards = 0
        self.right: dict[str, Any] = {}
        self.mine: dict[str, Any] = {}
        self.losses: list[float] = []
        self.remarks: list[str] = []
        self._handles: list[Any] = []

    def hooks(self) -> list[Any]:
        """What sees the model called."""
        model = self.watcher.model
        self._handles = [
            # First of all: hooks of others change the arguments (ms-swift runs the vision tower in one).
            model.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True),
            model.register_forward_hook(self._after),
        ]
        return self._handles

    def add(self, name: str, gradient: Any) -> None:
        """A part of the training's own gradient of the first micro-batch."""
        if self.right and not self.over:
            self.ready = True
            before = self.mine.get(name)
            # Always a copy: DDP and DeepSpeed put the gradient's memory to other uses.
            self.mine[name] = gradient.detach().clone() if before is None else before.add_(gradient.detach())

    def end(self) -> None:
        """Look no more, and forget."""
        self.over, self.ready = True, False
        self.right.clear()
        self.mine.clear()
        for handle in self._handles:
            handle.remove()

    def _before(self, module: Any, args: Any, kwargs: Any) -> None:
        import torch

        if self.over or self.busy or not (module.training and torch.is_grad_enabled()):
            return
        self.forwards += 1
        if self.forwards > 1 and not self.ready:
            # Two forwards before one backward: their gradients come together.
            self._give_up("the model is called more than once before a backward")
        if self.right or self.over:
            return
        if reason := self._no_room():
            self._give_up(reason)
            return
        if any(_in_a_graph(value) for value in (*args, *kwargs.values())):
            # Its backward would free what the training's own needs.
            self._give_up("what the model is given was computed with a graph")
            return
        reason = ""
        try:
            self.busy = True
            with untouched(module, (args, kwargs)), _without_checkpointing(module):
                reason = self._run(module, args, kwargs)
        except CannotUndo as error:
            reason = str(error)
        except Exception as error:  # whatever it is, the training goes on
            reason = f"the step with checkpointing off failed: {type(error).__name__}: {error}"
        finally:
            self.busy = False
        if reason:
            self._give_up(reason)

    def _after(self, module: Any, args: Any, output: Any) -> None:
        if self.right and len(self.losses) == 1 and (loss := _loss(output)) is not None and not self.busy:
            self.losses.append(float(loss.detach()))

    def _run(self, module: Any, args: Any, kwargs: Any) -> str:
        """Make the step; nothing, or why there is nothing to compare with."""
        import torch

        loss = _loss(module(*args, **kwargs))
        if loss is None:
            return "the model returns no loss"
        names = list(self.watcher.trained)
        found = torch.autograd.grad(loss, [self.watcher.trained[name] for name in names], allow_unused=True)
        self.losses = [float(loss.detach())]
        self.right = {name: g for name, g in zip(names, found, strict=True) if g is not None and g.any()}
        return "" if self.right else "no parameter has a gradient with checkpointing off"

    def _give_up(self, reason: str) -> None:
        self.end()
        self.remarks.append(f"not compared with checkpointing off: {reason}")
        self.watcher.remarks += self.remarks

    def _no_room(self) -> str:
        if not _checkpointing(self.watcher.model):
            return "it is off"
        needed = 2 * sum(p.numel() * p.element_size() for p in self.watcher.trained.values())
        return "" if needed <= MEMORY * _free(self.watcher.model) else "it would take too much memory"

    def compared(self) -> list[SilentFailure]:
        """What differs; gradients up to one common factor (accumulation, a scaled loss)."""

        found = []
        dtype = next(iter(self.right.values())).dtype
        tolerance = TOLERANCE.get(str(dtype).removeprefix("torch."), LOW_PRECISION)
        off, on = self.losses[0], self.losses[-1]
        if not _close(off, on, tolerance):
            found.append(
                SilentFailure(f"the loss is {on:.6g}, with checkpointing off {off:.6g}", (), RECOMPUTED)
            )
        missing = tuple(name for name in self.right if name not in self.mine)
        if missing:
            what = (
                f"{len(missing)} trainable parameters have a gradient with checkpointing off and none with it"
            )
            found.append(SilentFailure(what, missing, _why_unreached(self.watcher.model, missing)))
        both = [name for name in self.right if name in self.mine]
        scale = self._scale(both)
        whole = sum(float(self.right[name].float().norm()) ** 2 for name in both) ** 0.5
        wrong = tuple(
            name
            for name in both
            if float((self.mine[name].float() - scale * self.right[name].float()).norm())
            > tolerance * abs(scale) * max(float(self.right[name].float().norm()), 1e-3 * whole)
        )
        if wrong:
            what = f"the gradients of {len(wrong)} parameters are not those with checkpointing off"
            found.append(SilentFailure(what, wrong, RECOMPUTED))
        if not found:
            norm = abs(scale) * whole
            self.remarks.append(
                f"loss {self.losses[-1]:.6g} and gradient norm {norm:.4g} as with checkpointing off"
            )
        return found

    def _scale(self, names: list[str]) -> float:
        """The factor between the two, from the most frequent case: the median over the tensors."""
        import statistics

        ratios = []
        for name in names:
            right, mine = self.right[name].float(), self.mine[name].float()
            ratios.append(float((mine * right).sum() / right.square().sum()))
        return statistics.median(ratios) if ratios else 1.0


APART = (
    "the loss is computed past DDP's wrapper (a script that calls self.model), or gradients are reduced in a "
    "nested backward (use_reentrant=True); `python -m vlmpatch explain F6` and `explain F10`"
)
ZEROS = (
    "what they feed adds nothing to the loss: no image in these batches, labels all masked, or a part of the "
    "model that this task does not use"
)
RECOMPUTED = (
    "the recompute sees something else than the forward did: a cache, a random number, a buffer that the "
    "forward writes; `python -m vlmpatch doctor`"
)
CUT = (
    "use_reentrant=True cuts the graph where nothing that goes in requires a gradient, as the vision tower's "
    "input; use_reentrant=False ends it (`python -m vlmpatch explain F5`). Or no batch had an image"
)
UNUSED = "no batch used them: text without images, or a layer whose output the model does not read"


def _why_unreached(model: Any, names: tuple[str, ...]) -> str:
    return CUT if _checkpointing(model) and any(tower in n for n in names for tower in TOWERS) else UNUSED


def _awaits_its_pair(name: str) -> bool:
    """LoRA's A has a zero gradient as long as B is zero, which a warm-up from zero keeps it."""
    return "lora_A" in name or "lora_embedding_A" in name


def _close(one: float, other: float, tolerance: float) -> bool:
    return abs(one - other) <= tolerance * max(abs(one), abs(other))


def _loss(output: Any) -> Any:
    if isinstance(output, Mapping):
        return output.get("loss")
    return getattr(output, "loss", None)


def _in_a_graph(value: Any) -> bool:
    """Whether a backward from ``value`` goes on beyond it."""
    if isinstance(value, Mapping):
        return any(map(_in_a_graph, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_in_a_graph, value))
    return getattr(value, "grad_fn", None) is not None


def _checkpointing(model: Any) -> list[Any]:
    """The modules whose switch for checkpointing is on."""
    return [module for module in model.modules() if getattr(module, "gradient_checkpointing", False) is True]


@contextlib.contextmanager
def _without_checkpointing(model: Any) -> Iterator[None]:
    switched = _checkpointing(model)
    for module in switched:
        module.gradient_checkpointing = False
    try:
        yield
    finally:
        for module in switched:
            module.gradient_checkpointing = True


def _free(model: Any) -> float:
    """Bytes that the model's device has to spare."""
    import torch

    device = next(model.parameters()).device
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return float(free)
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return 0.0


# --- where it is hooked in ----------------------------------------------------------------------


def arm(hooks: Hooks, journal: Journal, steps: int = STEPS) -> None:
    """Give every Trainer of this process a ``WatchCallback``; called when VLMPATCH_WATCH is set.

    Args:
        hooks: tells of transformers.
        journal: records the change.
        steps: how many optimizer steps each Trainer is watched for.
    """

    def on_target(module: Any) -> None:
        made = sys.modules[__name__].WatchCallback

        def build(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if not any(isinstance(callback, made) for callback in self.callbacks):
                self.callbacks.append(made(steps))

        journal.wrap("watch", module.CallbackHandler, "__init__", build)

    hooks.watch(TARGET, on_target)


def __getattr__(name: str) -> Any:
    """``WatchCallback``, made when it is asked for: it derives from a class of transformers."""
    if name != "WatchCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformers.trainer_callback import TrainerCallback

    class WatchCallback(TrainerCallback):  # type: ignore[misc]
        """Watches the first steps of one Trainer and warns of what fails without an error.

        Args:
            steps: how many optimizer steps.
        """

        def __init__(self, steps: int = STEPS) -> None:
            self.steps = steps
            self.watcher: Watcher | None = None
            self.verdict: Verdict | None = None  # for which some rank has not yet come

        def on_train_begin(
            self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
        ) -> None:
            """Begin, where the model is one that can be watched."""
            if getattr(args, "fsdp", None):
                tell("parameters are sharded by FSDP: not watched", everywhere=_several())
            elif model is not None:
                self.watcher = Watcher(model, self.steps)

        def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """A micro-batch within an accumulation is over."""
            if self.watcher is not None:
                self.watcher.micro_batch_ended()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """The optimizer has made its step."""
            if self.verdict is not None:
                # Every rank's gradients were needed for this step, so each has come past the one before.
                self.verdict.given_up()
                self.verdict = None
            if self.watcher is not None and self.watcher.step_ended():
                self.verdict, self.watcher = conclude(self.watcher), None

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """The training was shorter than the watch."""
            if self.watcher is not None:
                self.watcher.end()
                self.verdict, self.watcher = conclude(self.watcher), None
            if self.verdict is not None:
                atexit.register(self.verdict.given_up)
                self.verdict = None

    globals()[name] = WatchCallback
    return WatchCallback


def conclude(watcher: Watcher) -> Verdict | None:
    """Say what was found, or that nothing was; a verdict where another rank is still to say it."""
    for finding in watcher.own:
        tell(str(finding), everywhere=True)
    verdict = Verdict(watcher)
    return None if verdict.said() else verdict


class Verdict:
    """What is said of a training that was watched."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher, self.exchange = watcher, watcher.exchange

    def said(self) -> bool:
        """Say it, where this rank trains alone or is the last to come."""
        own = self.watcher.report()
        if self.exchange is None:
            self._say([own], everywhere=_several())
            return True
        try:
            reports = [Report(**report) for report in self.exchange.leave(own._asdict())]
        except Exception as error:  # the store has gone
            self._alone(repr(error))
            return True
        if len({(report.names, report.steps) for report in reports}) > 1:
            self._alone("they do not train the same parameters for as many steps")
        elif reports:
            self._say(reports)
        return bool(reports)

    def given_up(self) -> None:
        """Some rank may not have come, and will not; the first of them speaks for itself."""
        with contextlib.suppress(Exception):  # the store has gone, and the job with it
            if self.exchange is not None and self.exchange.place == 0 and not self.exchange.complete():
                self._alone("not all of them have watched this training")

    def _alone(self, reason: str) -> None:
        self.watcher.remarks.insert(0, f"the ranks were not compared: {reason}")
        self._say([self.watcher.report()], everywhere=True)

    def _say(self, reports: list[Report], everywhere: bool = False) -> None:
        watcher = self.watcher
        findings = watcher.findings(reports)
        for finding in findings:
            tell(str(finding), everywhere)
        if not findings and all(report.well for report in reports):
            looked = f"{watcher.steps} steps, {len(watcher.trained)} trainable parameters, all reached"
            agree = ["the ranks agree"] if len(reports) > 1 and not watcher.partitioned else []
            tell("; ".join([looked, *agree, *watcher.remarks]), everywhere)


def tell(text: str, everywhere: bool = False) -> None:
    """To standard error: who watches wants to know that all is well, too.

    Args:
        text: one sentence or two.
        everywhere: it is of this rank alone, whose number is shown.
    """
    whose = f"rank {_rank()}: " if everywhere else ""
    print(f"vlmpatch watch: {whose}{text}", file=sys.stderr, flush=True)


def _several() -> bool:
    """Whether this process is one of several."""
    import torch.distributed as dist

    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def _rank() -> str:
    """As the job counts it; a script may have taken the launcher's variables away."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return str(dist.get_rank())
    return os.environ.get("RANK", "0")
