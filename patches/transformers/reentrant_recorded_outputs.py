"""Under ``use_reentrant=True`` the routers' loss, and any loss of recorded outputs, trains nothing.

What the user sees: nothing. With ``use_reentrant=True`` and ``output_router_logits=True`` (LLaMA-Factory's
``moe_aux_loss_coef``), gradients lack the part of the load balancing loss, which stands in the loss that is
printed; so do those of a loss of attentions.

Why: such outputs are no results of a layer. Transformers records them as a module inside of the layer returns
them, and reentrant checkpointing runs a layer without gradients, then gives a graph to its results alone.
What was recorded is a number.

Since transformers 4.54 (Mixtral, Qwen3-MoE, MiniMax, Ernie 4.5 MoE; Qwen2-MoE and others by 5.0), before
which a layer returned its router's logits; with every torch.

The change: at the one door of the reentrant variant, where the model's forward records, what was recorded in
the segment and has no graph goes out of it beside its results, and takes its own place in the record with a
graph. In the backward it is recorded again, by the same modules in the same order, if a gradient has come for
it; if none has, the segment runs as without the patch. The non-reentrant variant does not come here.

Upstream: https://github.com/huggingface/transformers/pull/39120 (which brought it)
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.checkpointed import all_blocks_of

DOOR = "CheckpointFunction.apply(function, preserve, *args)"
LISTS = "transformers.utils.output_capturing"  # since 5.2
COLLECTOR = "_active_collector"
HOOKS = ("install_output_capuring_hook", "install_output_capturing_hook")  # the second in 5.6.0
APPENDS = "collected_outputs = _active_collector.get()"
WRAPS, WRAPPED = "transformers.utils.generic", "def wrapped_forward("  # until 5.1
COLLECTED = ("collected_outputs", "index", "key", "orig_forward")  # what it knows
LAYERS = "monkey_patched_layers"  # with such forwards, as the model's forward has them
FIRST = "hidden_states"  # of which the first is what the first module was called with

_running = threading.local()  # what records in the recomputation that runs


class Tap(NamedTuple):
    """A module of which an output is recorded."""

    module: Any
    place: int  # of it, in a tuple
    record: Record


class Record(NamedTuple):
    """Recorded outputs of one name: where they lie, and how many there were before the segment."""

    holder: dict[str, Any]
    name: str
    before: int

    def added(self) -> list[Any]:
        """What the segment has added."""
        return [*self.holder.get(self.name, ())[self.before :]]

    def put(self, instead: dict[int, Any]) -> None:
        """Put other tensors in the place of those that the segment has added."""
        if added := self.added():
            values = self.holder[self.name]
            new = (instead.get(id(value), value) for value in added)
            self.holder[self.name] = type(values)([*values[: self.before], *new])

    def emptied(self) -> Record:
        """One with nothing in it, of which places count as they do here."""
        return Record({self.name: [None] * self.before}, self.name, self.before)


Recording = tuple[list[Record], Callable[[], Any]]  # and what records it again, as a context
WAYS: dict[str, Callable[[Any], Recording | None]] = {}  # in which outputs are recorded, by the module


def look(code: Code) -> str | None:
    """There must be one door to the reentrant variant, and outputs recorded in one of two ways."""
    if code.module.startswith("torch"):
        known = DOOR in code.source
    elif code.module == LISTS:
        hook = next(filter(None, map(code.function, HOOKS)), None)
        known = COLLECTOR in code.names and hook is not None and APPENDS in hook
    else:
        found = code.function("check_model_inputs")
        if found is None or "collected_outputs" not in found:
            return "no outputs are recorded here"
        known = WRAPPED in found and all(name in found for name in (*COLLECTED, LAYERS))
    if not known:
        raise Unrecognised(f"{code.module} does not do it as it did")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Hand out of a segment what was recorded in it, in each way that is there."""
    if not module.__name__.startswith("torch"):
        patch.set_item(WAYS, module.__name__, in_lists if module.__name__ == LISTS else by_wrapped_forwards)
        return
    from torch import is_grad_enabled

    def enter(original: Callable[..., Any], cls: type, /, *args: Any, **kwargs: Any) -> Any:
        found = _recording(args[0]) if WAYS and is_grad_enabled() and len(args) > 1 else None
        if found is None:
            return original(cls, *args, **kwargs)
        segment = Segment(*found)
        return segment.own(original(cls, around(args[0], segment), *args[1:], **kwargs))

    patch.wrap(module.CheckpointFunction, "apply", enter)


def _recording(function: Any) -> Recording | None:
    return next((found for way in list(WAYS.values()) if (found := way(function)) is not None), None)


def around(function: Any, segment: Segment) -> Any:
    """``function`` as ``segment`` runs it; other patches find in it what they find in ``function``."""
    partial = function if isinstance(function, functools.partial) else functools.partial(function)
    inner, bound = partial.func, partial.args

    def call(*args: Any, **keywords: Any) -> Any:
        run = functools.partial(inner, *bound, *args, **keywords)
        return segment.run(run, (*args, *keywords.values()))

    return functools.partial(call, **partial.keywords) if partial.keywords else call


def in_lists(function: Any) -> Recording | None:
    """What hooks append to, as long as a model's forward runs."""
    active = getattr(sys.modules[LISTS], COLLECTOR)
    collector = active.get()
    if not collector:
        return None
    counts = {name: len(values) for name, values in collector.items() if type(values) is list}
    beside = {name: values for name, values in collector.items() if name not in counts}

    @contextlib.contextmanager
    def again() -> Iterator[list[Record]]:
        fresh = {**beside, **{name: [None] * count for name, count in counts.items()}}
        before = active.set(fresh)
        try:
            yield [Record(fresh, name, count) for name, count in counts.items()]
        finally:
            active.reset(before)

    return [Record(collector, name, count) for name, count in counts.items()], again


def by_wrapped_forwards(function: Any) -> Recording | None:
    """What the wrapped forwards of the modules that ``function`` runs add to, as long as a model's runs."""
    taps = [*_taps(function)] if getattr(_running, "taps", ()) or _in_a_recording() else []
    if not taps:
        return None
    records = {(id(tap.record.holder), tap.record.name): tap.record for tap in taps}
    places = {key: place for place, key in enumerate(records)}
    # None of them holds what was recorded: that is on the graph which will hold this.
    emptied = [record.emptied() for record in records.values()]
    where = [(tap.module, tap.place, places[id(tap.record.holder), tap.record.name]) for tap in taps]

    @contextlib.contextmanager
    def again() -> Iterator[list[Record]]:
        fresh = [record.emptied() for record in emptied]
        now = [Tap(module, index, fresh[place]) for module, index, place in where]
        with _watched(now):
            yield fresh

    return [*records.values()], again


def _in_a_recording() -> bool:
    """Whether one of the forwards that we are in records: its modules are many more than its callers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        mine = frame.f_globals.get("__name__") == WRAPS and LAYERS in frame.f_code.co_varnames
        if mine and frame.f_locals.get(LAYERS, True):  # a compiler keeps it elsewhere
            return True
        frame = frame.f_back
    return False


def _taps(function: Any) -> Iterator[Tap]:
    now = getattr(_running, "taps", ())
    for module in _modules(function):
        wrapped = _vars(module).get("forward")
        while (known := _knows(wrapped)) is not None:
            holder, index, name, wrapped = (known[each] for each in COLLECTED)
            yield Tap(module, index, Record(holder, name, len(holder.get(name, ()))))
        for tap in now:
            if tap.module is module:
                holder, name, _ = tap.record
                yield Tap(module, tap.place, Record(holder, name, len(holder[name])))


def _modules(function: Any) -> Iterator[Any]:
    left, seen = [*all_blocks_of(function)], set()
    while left:
        module = left.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield module
            left += [part for part in _vars(module).get("_modules", {}).values() if part is not None]


def _vars(module: Any) -> Any:
    return getattr(module, "__dict__", {})


def _knows(wrapped: Any) -> dict[str, Any] | None:
    """What a wrapped forward of transformers' knows."""
    if not isinstance(wrapped, FunctionType) or not {*COLLECTED} <= {*wrapped.__code__.co_freevars}:
        return None
    cells = zip(wrapped.__code__.co_freevars, wrapped.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if name in COLLECTED}


@contextlib.contextmanager
def _watched(taps: list[Tap]) -> Iterator[None]:
    """Record what modules return, before any other hook sees it, as their wrapped forwards did."""
    outer = getattr(_running, "taps", ())
    handles = [tap.module.register_forward_hook(_recorder(tap), prepend=True) for tap in taps]
    _running.taps = taps
    try:
        yield
    finally:
        _running.taps = outer
        for handle in handles:
            handle.remove()


def _recorder(tap: Tap) -> Callable[..., None]:
    holder, name, _ = tap.record

    def record(module: Any, args: tuple[Any, ...], output: Any) -> None:
        if name == FIRST and not holder[name]:
            holder[name].append(args[0] if args else None)
        output = output[tap.place] if isinstance(output, tuple) else output
        if output is not None:
            holder[name].append(output)

    return record


class Segment:
    """What a checkpoint runs: first without gradients, then in each backward.

    Args:
        records: that it adds to as it runs first.
        again: a context, in which it adds to others instead.
    """

    def __init__(self, records: list[Record], again: Callable[[], Any]) -> None:
        self.again = again
        self._records = records  # none of them, and nothing taken, once it has run: they hold its graph
        self._taken: list[Any] = []
        self._places: list[tuple[int, int]] = []  # of what was taken: in which record, and where
        self._results = 0
        self._alone = False  # its result is a tensor
        self._ran = False
        self._wanted: set[int] = set()  # for which of what was taken there is a gradient

    def run(self, function: Callable[[], Any], inputs: tuple[Any, ...]) -> Any:
        """What ``function`` returns, and what was recorded beside it."""
        if self._ran:
            return self._once_more(function)
        self._ran = True
        result = function()
        self._alone = _is_tensor(result)
        results = (result,) if self._alone else result
        with _plainly():
            # Another patch may take tensors out of tuples in a result that has no others.
            if type(results) is tuple and any(map(_differentiable, results)):
                self._results = len(results)
                self._take({id(value) for value in (*results, *inputs)})
            return (*results, *(value.detach() for value in self._taken)) if self._taken else result

    def _take(self, known: set[int]) -> None:
        for number, record in enumerate(self._records):
            for place, value in enumerate(record.added()):
                # What requires grad here came from outside of the segment, with a graph.
                if id(value) not in known and _differentiable(value) and not value.requires_grad:
                    known.add(id(value))
                    self._taken.append(value)
                    self._places.append((number, place))

    def own(self, parts: Any) -> Any:
        """Its results among the ``parts`` that came out of it; the others go where they were recorded."""
        records, taken, self._records, self._taken = self._records, self._taken, [], []
        if not taken:
            return parts
        results, given = parts[: self._results], parts[self._results :]
        with _plainly():
            node = next((part.grad_fn for part in given if part.grad_fn is not None), None)
        if node is not None:  # something that is trained, or leads to it, came in
            node.register_prehook(self._see)
            for record in records:
                record.put({id(old): new for old, new in zip(taken, given, strict=True)})
        return results[0] if self._alone else results

    def _see(self, gradients: tuple[Any, ...]) -> None:
        given = gradients[self._results :]
        self._wanted = {number for number, gradient in enumerate(given) if gradient is not None}

    def _once_more(self, function: Callable[[], Any]) -> Any:
        if not self._wanted:
            return function()
        with self.again() as records:
            result = function()
        results = (result,) if _is_tensor(result) else result
        added = [record.added() for record in records]
        return (*results, *(self._found(added, number) for number in range(len(self._places))))

    def _found(self, added: list[list[Any]], number: int) -> Any:
        record, place = self._places[number]
        return added[record][place] if number in self._wanted and place < len(added[record]) else None


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _differentiable(value: Any) -> bool:
    return _is_tensor(value) and (value.is_floating_point() or value.is_complex())


def _plainly() -> Any:
    import torch

    return torch._C.DisableTorchFunction()  # a mode or a subclass of a script may count what it sees
