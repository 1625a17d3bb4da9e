"""ZeRO's optimizer moved parameters that had no gradient.

What the user sees: nothing. A parameter that no rank used in a step (an expert that nobody chose, a head or
an adapter used now and then) is moved by momentum and weight decay. So is one that was frozen in the middle
of a run with ``requires_grad_(False)``: with AdamW 15 % of what the run moved most after two steps, 68 %
after more, and with ``offload_optimizer`` the last gradient is applied again in every step, whatever the
optimizer.

Why: an optimizer passes over a parameter without a gradient. ZeRO gives it a flat partition of many
parameters, in which what has no gradient has a zero, or offloaded the last one it had: momentum and weight
decay act on it, and the partition has one count of steps for all.

What is done: the optimizer is given the partition in pieces, without those that have no gradient, as views
of its weights and of its state; from then on what has missed steps is a piece with its own count of them, so
that Adam divides by what it would in plain torch. Which parameters no rank used is read from the gradients
themselves (``_shared/missing_gradients.py``), and only where this rank did not use one: no rank asks another.
A step in which every parameter is used costs a look at each; a partition whose parameters have missed
different numbers of steps takes one call of the optimizer's kernels for each number.

One that was frozen after a backward of the window still gets that window's update, as in plain torch, be its
gradient zero (an evaluation between backward and step freezes all for a moment); in ZeRO-3, which drops what
it had, only where the window was over. That a partition has such a zero there is
seen to by ``zero-uneven-gradients`` and ``zero3-stale-gradients``.

Before there is a state, for an optimizer that does not work element by element or is neither torch's nor
DeepSpeed's, and where its step has hooks, the whole partition takes its step and what had no gradient is put
back; such an optimizer's count of steps goes on.

What was missed is saved with each rank's state of the optimizer, under a key that DeepSpeed reads over, and
comes back with it: a text, which its tools (``zero_to_fp32.py``, ``ds_to_universal``) hand on or drop. There
is none where nothing was missed. After a checkpoint without it, and after a universal one, all parts have the
partition's count; so they have, with a warning, where it cannot be read.

Left alone: ZenFlow, a state on NVMe, BF16_Optimizer.

Every release from 0.14.5 to 0.19.8; no upstream report was found.
https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/runtime/zero/stage_1_and_2.py
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from vlmpatch.api import Argument, Code, Patch, Unrecognised, assign

from .._shared.missing_gradients import nobody_made, unreached

ENGINE, BACKWARDS = "DeepSpeedEngine", ("backward", "_backward_prologue")
OPTIMIZERS = ("DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3")
STEP = "_optimizer_step"
GROUP = Argument(0, "group_no")
SUB_GROUP = Argument(0, "sub_group_id")
# What they do to an element depends on that element, its state and a count of steps alone.
BY_ELEMENT = {"Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "FusedAdam", "DeepSpeedCPUAdam"}
THEIRS = ("torch.optim.", "deepspeed.ops.")  # an optimizer of another with such a name may do otherwise
HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
GLOBAL_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
BY_SCHEDULER = "_wrapped_by_lr_sched"
COUNT = "step"
SAVED = "vlmpatch_missed_steps"
UNREADABLE = (
    f"{SAVED} in this rank's optimizer states cannot be read: every part goes on with the partition's count "
    "of steps. Resume from another checkpoint if parts had missed steps."
)
FILES = Argument(0, "state_dict_list")  # of each rank what its file has of the optimizer
WITH_STATES = Argument(1, "load_optimizer_states")
UNIVERSAL = Argument(3, "checkpoint_folder")


class Part(NamedTuple):
    """Where a parameter lies in the partition of this rank."""

    start: int
    size: int


class History:
    """How many steps of a partition its parts have missed.

    Attributes:
        missed: of each part that has missed any.
        unused: those that never had a gradient, and have no state yet.
        count: of the partition, after the last step.
    """

    def __init__(
        self,
        missed: Mapping[Part, int] | None = None,
        unused: Iterable[Part] = (),
        count: float | None = None,
    ) -> None:
        self.missed = {**(missed or {})}
        self.unused = {*unused}
        self.count = count

    def clear(self) -> None:
        """Forget all: every part has taken all steps of the partition."""
        self.missed.clear()
        self.unused.clear()

    def pieces(self, size: int, idle: Iterable[Part]) -> Iterator[tuple[Part, int, bool]]:
        """What takes a step, as ``(piece, steps it missed, whether it has a state)``, in order.

        Args:
            size: of the partition.
            idle: parts that take none.
        """
        left_out = set(idle)
        begin = 0
        for part in sorted({*self.missed, *left_out}):
            if part.start > begin:
                yield Part(begin, part.start - begin), 0, True
            if part not in left_out:
                yield part, self.missed[part], part not in self.unused
            begin = part.start + part.size
        if size > begin:
            yield Part(begin, size - begin), 0, True

    def add(self, idle: Iterable[Part], *, begun: bool) -> None:
        """``idle`` took no part in a step; ``begun`` says whether they had a state before it."""
        for part in idle:
            if part not in self.missed and not begun:
                self.unused.add(part)
            self.missed[part] = self.missed.get(part, 0) + 1

    def counted(self, count: float | None) -> None:
        """The optimizer has counted so many steps."""
        self.count = count

    def told(self) -> dict[str, Any]:
        """All of it in what JSON knows."""
        return {"count": self.count, "missed": [*self.missed.items()], "unused": [*self.unused]}

    @classmethod
    def of(cls, told: dict[str, Any]) -> History:
        """Reads what ``told`` says, once it was JSON."""
        missed = {Part(*part): missed for part, missed in told["missed"]}
        return cls(missed, (Part(*part) for part in told["unused"]), told["count"])


_histories: WeakKeyDictionary[Any, dict[int, History]] = WeakKeyDictionary()  # of each group of an optimizer

_frozen: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()  # in every backward of an optimizer's window
_stepped: WeakSet[Any] = WeakSet()  # optimizers whose window is over


def look(code: Code) -> str | None:
    """The optimizer must take its step partition by partition, the engine must have its backward."""
    if code.module.endswith("engine"):
        if code.function(f"{ENGINE}.{BACKWARDS[0]}") is None:
            raise Unrecognised(f"{code.path} has no {ENGINE}.{BACKWARDS[0]}")
        return None
    if not any(code.function(f"{name}.{STEP}") for name in OPTIMIZERS):
        raise Unrecognised(f"{code.path} has no {STEP}")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Let only what has a gradient take a step."""

    def step_of_group(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        group = GROUP.of(args, kwargs)
        flat = self.single_partition_of_fp32_groups[group]
        with _partly(patch, self, group, flat, _without_gradient(self, self.bit16_groups[group], _of_flat)):
            return original(self, *args, **kwargs)

    def step_of_sub_group(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        group = SUB_GROUP.of(args, kwargs)
        flat = self.fp32_partitioned_groups_flat[group]

        def place(param: Any) -> Part:
            return shard_of(param, *self.grad_position[self.get_param_id(param)][1:])

        with _partly(patch, self, group, flat, _without_gradient(self, self.fp16_groups[group], place)):
            return original(self, *args, **kwargs)

    if module.__name__.endswith("engine"):
        for name in BACKWARDS:
            if hasattr(module.DeepSpeedEngine, name):
                patch.wrap(module.DeepSpeedEngine, name, backward)
    elif hasattr(module, "DeepSpeedZeroOptimizer_Stage3"):
        patch.wrap(module.DeepSpeedZeroOptimizer_Stage3, STEP, step_of_sub_group)
        patch.wrap(module.DeepSpeedZeroOptimizer_Stage3, "step", step)
        patch.wrap(module.DeepSpeedZeroOptimizer_Stage3, "state_dict", state_dict)
        patch.wrap(module.DeepSpeedZeroOptimizer_Stage3, "load_state_dict", loading(patch))
    else:
        patch.wrap(module.DeepSpeedZeroOptimizer, STEP, step_of_group)
        patch.wrap(module.DeepSpeedZeroOptimizer, "step", step)
        patch.wrap(module.DeepSpeedZeroOptimizer, "state_dict", state_dict)
        patch.wrap(module.DeepSpeedZeroOptimizer, "load_state_dict", loading(patch))


def backward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around ``DeepSpeedEngine.backward``, and what begins a backward without it."""
    optimizer = self.optimizer
    if type(optimizer).__name__ in OPTIMIZERS:
        groups = optimizer.fp16_groups if hasattr(optimizer, "fp16_groups") else optimizer.bit16_groups
        now = {id(param) for group in groups for param in group if not param.requires_grad}
        if optimizer not in _stepped and optimizer in _frozen:
            now &= _frozen[optimizer]
        _frozen[optimizer] = now
        _stepped.discard(optimizer)
    return original(self, *args, **kwargs)


def step(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around the optimizer's, which ends the window, be it that the step is passed over for an overflow."""
    _stepped.add(self)
    return original(self, *args, **kwargs)


def state_dict(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around the optimizer's, which makes what its rank's file has of it."""
    found = original(self, *args, **kwargs)
    if missed := _missed(self):
        found[SAVED] = json.dumps(missed)
    return found


def loading(patch: Patch) -> Callable[..., Any]:
    """Around the optimizer's: with its state comes what was missed, or that nothing was."""

    def load_state_dict(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        states = WITH_STATES.of(args, kwargs, True) and not UNIVERSAL.of(args, kwargs)
        # Read before it is loaded, which may drop it.
        text = _saved(self, FILES.of(args, kwargs)) if states else ""
        result = original(self, *args, **kwargs)
        if not states:
            return result
        _histories.pop(self, None)
        try:
            _histories[self] = _of_saved(self, json.loads(text))
        except (AttributeError, KeyError, TypeError, ValueError):
            patch.warn("a checkpoint", UNREADABLE, own=True)
        return result

    return load_state_dict


def _missed(optimizer: Any) -> dict[int, Any]:
    """Of each group with parts that have missed steps: its size, and its history."""
    histories = _histories.get(optimizer, {}).items()
    return {
        group: {"size": _partitions(optimizer)[group].numel(), **history.told()}
        for group, history in histories
        if history.missed
    }


def _saved(optimizer: Any, files: Any) -> str:
    """What this rank's of ``files`` says of them."""
    rank = sys.modules["torch.distributed"].get_rank(optimizer.dp_process_group)
    own = files[rank] if rank < len(files or ()) else None
    return str(own.get(SAVED, "{}")) if isinstance(own, dict) else "{}"


def _of_saved(optimizer: Any, saved: dict[str, Any]) -> dict[int, History]:
    """The histories of those groups that are still of the size that they were saved with."""
    sizes = {str(group): flat.numel() for group, flat in enumerate(_partitions(optimizer))}
    return {int(group): History.of(told) for group, told in saved.items() if sizes.get(group) == told["size"]}


def _partitions(optimizer: Any) -> list[Any]:
    """Of each group what of it is this rank's."""
    stage3 = hasattr(optimizer, "fp32_partitioned_groups_flat")
    flats: list[Any] = (
        optimizer.fp32_partitioned_groups_flat if stage3 else optimizer.single_partition_of_fp32_groups
    )
    return flats


def _of_flat(param: Any) -> Part | None:
    """Where ZeRO-1 and ZeRO-2 keep it; None: on another rank."""
    if (mapping := getattr(param, "_hp_mapping", None)) is None:
        return None
    return Part(mapping.hp_fragment_address.start, mapping.hp_fragment_address.numel)


def shard_of(param: Any, start: int, size: int) -> Part:
    """What of a partition of ZeRO-3 is ``param``: the last rank's is filled up, and what fills it has a zero.

    Args:
        param: a parameter that DeepSpeed has partitioned.
        start: of its partition in that of its group.
        size: of its partition, the same on every rank.
    """
    before = sys.modules["torch.distributed"].get_rank(param.ds_process_group) * size
    return Part(start, max(0, min(size, param.ds_numel - before)))


class Idle(NamedTuple):
    """A part that may have no gradient."""

    part: Part
    frozen: bool  # where a zero says enough: it is frozen on every rank


def _without_gradient(optimizer: Any, params: Any, place: Callable[[Any], Part | None]) -> Iterator[Idle]:
    missing, in_window = unreached.get(optimizer, ()), _frozen.get(optimizer)
    for param in params:
        frozen = not param.requires_grad and (in_window is None or id(param) in in_window)
        if frozen or id(param) in missing:
            part = place(param)
            if part is not None and part.size:
                yield Idle(part, frozen)


@contextlib.contextmanager
def _partly(patch: Patch, optimizer: Any, group: int, flat: Any, perhaps: Iterator[Idle]) -> Iterator[None]:
    """Inside, the optimizer's step leaves out what of ``perhaps`` has no gradient."""
    asked = list(perhaps)
    histories = _histories.setdefault(optimizer, {})
    if not (asked or group in histories) or _left_alone(optimizer):
        yield
        return
    history = histories.setdefault(group, History())
    idle = _idle(flat, asked)
    with contextlib.ExitStack() as block:
        for inner in _inner(optimizer):
            step = Step(patch, inner, flat, idle, history)
            block.enter_context(patch.swapped(inner, "step", step))
        yield


def _left_alone(optimizer: Any) -> bool:
    return bool(getattr(optimizer, "zenflow", False) or getattr(optimizer, "swap_optimizer", False))


def _inner(optimizer: Any) -> Iterator[Any]:
    for name in ("optimizer", "backup_optimizer"):
        if hasattr(optimizer, name):
            yield getattr(optimizer, name)


def _idle(flat: Any, asked: list[Idle]) -> list[Part]:
    """Those of ``asked`` that have no gradient."""
    import torch

    if flat.grad is None or not asked:
        return [part for part, _ in asked]
    gradients = [(of(flat.grad, part), frozen) for part, frozen in asked]
    none = [~gradient.any() if frozen else nobody_made(gradient) for gradient, frozen in gradients]
    return [part for (part, _), found in zip(asked, torch.stack(none).tolist(), strict=True) if found]


class Step:
    """Stands in for ``step`` of the optimizer inside, for one step of one partition.

    Args:
        patch: what swaps its state and groups.
        inner: the optimizer.
        flat: the partition, a tensor of one dimension.
        idle: parts of it that take no step.
        history: of the partition.
    """

    def __init__(self, patch: Patch, inner: Any, flat: Any, idle: list[Part], history: History) -> None:
        self.patch, self.inner, self.flat, self.idle, self.history = patch, inner, flat, idle, history
        self.original = inner.step

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What ``step`` is called with goes on to it."""
        state = self.inner.state.get(self.flat)
        group = next((g for g in self.inner.param_groups if any(p is self.flat for p in g["params"])), None)
        if group is None or self.flat.grad is None:  # the partition is the other optimizer's
            return self.original(*args, **kwargs)
        if not state or not _by_element(self.inner, self.original):
            return self._and_put_back(*args, **kwargs)
        return self._in_pieces(group, state, *args, **kwargs)

    def _and_put_back(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        # On the CPU: there may be no room for them on a GPU.
        before = {
            name: [of(tensor, part).to("cpu", copy=True) for part in self.idle]
            for name, tensor in self._kept().items()
        }
        result = self.original(*args, **kwargs)
        for name, tensor in self._kept().items():
            for number, part in enumerate(self.idle):
                # A state that began with this step begins with zeros.
                of(tensor, part).copy_(before[name][number] if name in before else torch.zeros(()))
        if _by_element(self.inner, self.original):
            self.history.add(self.idle, begun=False)
            self.history.counted(self._count())
        return result

    def _kept(self) -> dict[Any, Any]:
        """The weights, and what the optimizer keeps of each of them, by its names."""
        state = self.inner.state.get(self.flat, {})
        return {"": self.flat.data, **{key: value for key, value in state.items() if self._is_whole(value)}}

    def _is_whole(self, value: Any) -> bool:
        return bool(getattr(value, "shape", None) == self.flat.shape)

    def _count(self) -> float | None:
        count = self.inner.state.get(self.flat, {}).get(COUNT)
        return None if count is None else float(count)

    def _in_pieces(self, group: dict[str, Any], state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if self.history.count != self._count():  # another state was loaded
            self.history.clear()
        groups: dict[int, dict[str, Any]] = {}
        states: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        begun: dict[Any, Part] = {}  # by this step
        for part, missed, known in self.history.pieces(self.flat.numel(), self.idle):
            piece = of(self.flat.detach(), part)
            assign(piece, "grad", of(self.flat.grad, part))
            if known:
                states[piece] = {key: self._of(part, missed, key, value) for key, value in state.items()}
            else:
                begun[piece] = part
            groups.setdefault(missed, _like(group))["params"].append(piece)
        with contextlib.ExitStack() as block:
            block.enter_context(self.patch.swapped(self.inner, "state", states))
            block.enter_context(self.patch.swapped(self.inner, "param_groups", list(groups.values())))
            result = self.original(*args, **kwargs)
        for piece, part in begun.items():
            self._keep(state, states[piece], part)
            self.history.unused.discard(part)
        if COUNT in state:
            state[COUNT] += 1
        self.history.add(self.idle, begun=True)
        self.history.counted(self._count())
        return result

    def _of(self, part: Part, missed: int, key: str, value: Any) -> Any:
        if self._is_whole(value):
            return of(value, part)
        return value - missed if key == COUNT else value

    def _keep(self, state: dict[str, Any], made: dict[str, Any], part: Part) -> None:
        for key, value in made.items():
            if self._is_whole(state.get(key)):
                of(state[key], part).copy_(value)


def _by_element(optimizer: Any, step: Any) -> bool:
    """Whether ``step`` may be taken piece by piece: it works element by element, and nobody looks on."""
    cls = type(optimizer)
    if cls.__name__ not in BY_ELEMENT or not cls.step.__module__.startswith(THEIRS):
        return False
    if getattr(step, "__self__", None) is not optimizer and not hasattr(step, BY_SCHEDULER):
        return False
    everywhere = vars(sys.modules["torch.optim.optimizer"])
    hooks = [*(getattr(optimizer, name, None) for name in HOOKS), *map(everywhere.get, GLOBAL_HOOKS)]
    return not any(hooks)


def _like(group: dict[str, Any]) -> dict[str, Any]:
    """A group of the same options; FusedAdam would take its count for that of a state that begins."""
    return {key: value for key, value in group.items() if key != COUNT} | {"params": []}


def of(tensor: Any, part: Part) -> Any:
    """What of a partition belongs to ``part``."""
    return tensor.view(-1).narrow(0, part.start, part.size)
