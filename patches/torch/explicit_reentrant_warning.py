"""``use_reentrant=True``, said by the user, where it can only end the run.

What the user sees: ``Expected to mark a variable ready only once`` (DDP), ``The parameter N has already
been reduced`` (ZeRO-1/2), or, under DDP, ranks that drift apart without an error. Of Gemma 3n and Gemma 4's
E-series gradients are 70 % off, in one process too.

Why: reentrant checkpointing runs a nested backward for each segment, which fires a parameter's gradient
hooks once a segment. DDP and those ZeRO optimizers that reduce in hooks count them. With
``find_unused_parameters=True`` DDP has counted every parameter of a segment as unused before. Without it, and
under ZeRO, it goes wrong once a block runs twice before one backward (DPO, a tower called for each image).
And it differentiates through what a block is called with and returns: keys and values that one block leaves
in a dictionary for another are neither.

In every release of torch; there is nothing to fix upstream.

The change: at the one door of the reentrant variant, where that outcome is known or possible, the weights of
a block become inputs of its segment: their gradients come out of it and no longer go straight to the hooks,
which fire once whatever the number of runs, and DDP's search finds them. What the block sees is the same (a
first run without gradients, a second in the backward), and so are the numbers. So it is inside a DDP that
searches for unused parameters, and of a block's runs before its first backward, for the first of two runs
cannot be told from an only one; that backward tells which weights each run trains. From the first weight on
that two runs trained, or block that ran more often than before its first backward (a network runs as often of
which each call runs another layer, by a method or a function that knows it), and where a block is handed such
a dictionary, a block with something to train goes through the non-reentrant variant, and so does a whole
engine of DeepSpeed. It is said once, in the backward that would have ended the run. Everywhere else (one
process, DDP with a static graph or in ``no_sync``, ZeRO-1 without ``overlap_comm``, ZeRO-3, FSDP, blocks that
run once) what the user said stands, and nothing is printed. So it does where another library has put a
function in the place of torch's that asks for True again.

Upstream: https://github.com/huggingface/accelerate/issues/389,
https://github.com/modelscope/ms-swift/issues/3128
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.checkpointed import blocks_of, bound_to
from .._shared.missing_gradients import count_as_none, from_nothing, none_made
from .._shared.training_group import active_ddp

DOOR = "CheckpointFunction.apply(function, preserve, *args)"
OPTIMIZER = "DeepSpeedZeroOptimizer"
HANDED = "shared_kv_states"  # in which blocks leave keys and values for others
SHARES = ("store_full_length_kv", "is_kv_shared_layer")  # what an attention says that does either
_OVERRULED = (
    "use_reentrant=True was passed, and {where} it can only end in {what}. This run {does}, and its "
    "gradients are the same. Pass False; VLMPATCH_DISABLE={patch} insists on True."
)
_NON_REENTRANT = "uses the non-reentrant variant"
_WEIGHTS_TOO = "hands the weights of a block over as inputs of it"
_UNUSED = "under DDP with find_unused_parameters=True"
_SHARED = "where blocks share keys and values"
_TWICE = "with a checkpointed block that runs twice before one backward under {wrapper}"


class Reduced:
    """Blocks whose gradients one wrapper reduces as their hooks fire, and when each ran last.

    Args:
        parameters: those that the wrapper reduces.
    """

    def __init__(self, parameters: Any) -> None:
        self.parameters = {id(parameter) for parameter in parameters}
        self.twice = False  # some block ran twice before one backward
        self.say: Callable[[], None] | None = None  # once both runs of such a block were differentiated
        self._trainers: dict[int, ref[Any]] = {}  # of each weight the run that trained it in the latest
        self._window = 0  # between two backwards
        self._backward = -1  # the latest, by autograd's number
        self._ran: WeakKeyDictionary[Any, tuple[int, ref[Any], bool]] = WeakKeyDictionary()
        self._times: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # each ran in the window
        self._known: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # and trained weights in its first
        self._differentiated: WeakKeyDictionary[Any, tuple[int, object]] = WeakKeyDictionary()

    def stands(self, block: Any) -> bool:
        """Whether ``block`` may run as the user said, as far as is known when it is about to run."""
        window, graph, told = self._ran.get(block, (self._window, None, False))
        if window < self._window:
            # A network may have run a layer each time: of two runs that trained one weight was told.
            self._known.setdefault(block, max(1, self._trained_by(block)))
        again = window == self._window and graph is not None and graph() is not None
        self._times[block] = times = self._times.get(block, 0) + 1 if again else 1
        first = block not in self._known
        if again and not (first and told) and times > self._known.get(block, 1):
            self.twice = True
        return not (first or self.twice)

    def ran(self, block: Any, result: Any, *, told: bool) -> None:
        """Remember that ``block`` ran, for as long as the graph of its ``result`` is there.

        Args:
            block: that ran.
            result: of it.
            told: whether its backward tells which weights it has trained.
        """
        block_of, window, run = ref(block), self._window, object()

        def seen(*gradients: Any) -> None:
            if (number := _backward_number()) != self._backward:
                self._backward = number
                self._window += 1
                self._trainers.clear()
            if not told and (block := block_of()) is not None:
                self._certain(block, window, run)

        if _in_backward_of(result, seen):
            self._ran[block] = (window, ref(seen), told)

    def _trained_by(self, block: Any) -> int:
        return len({id(run) for run in self._trainers.values() if run() is block})

    def trains(self, run: ref[Any], weight: Any) -> None:
        """In a backward: ``run`` of a block trains ``weight``, which another may have trained already."""
        if self._trainers.setdefault(id(weight), run) is not run:
            self.twice = True
            if self.say is not None:
                self.say()

    def _certain(self, block: Any, window: int, run: object) -> None:
        """Two runs of one window are differentiated: a graph may also be kept, and thrown away."""
        last, other = self._differentiated.get(block, (-1, run))
        if self.twice and last == window and other is not run and self.say is not None:
            self.say()
        self._differentiated[block] = (window, run)


class Run(ref[Any]):
    """One run of a block."""

    __slots__ = ()


_ddps: WeakKeyDictionary[Any, Reduced] = WeakKeyDictionary()
_optimizers: WeakKeyDictionary[Any, Reduced] = WeakKeyDictionary()
_asking = threading.local()


def look(code: Code) -> str | None:
    """There must be one door to the reentrant variant, and ZeRO's optimizer where it was."""
    if code.module.startswith("torch"):
        if DOOR not in code.source:
            raise Unrecognised("torch does not enter its reentrant variant as it did")
    elif code.function(f"{OPTIMIZER}.__init__") is None:
        raise Unrecognised(f"{code.module} has no {OPTIMIZER}")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Overrule the user at the door, and remember which parameters ZeRO reduces in hooks."""
    if hasattr(module, OPTIMIZER):
        patch.wrap(module.DeepSpeedZeroOptimizer, "__init__", _remember)
        return
    import torch

    def enter(original: Callable[..., Any], cls: type, /, *args: Any, **kwargs: Any) -> Any:
        block = _trained_block(args[0]) if torch.is_grad_enabled() and len(args) > 1 else None
        if block is None or _came_back(block):
            return original(cls, *args, **kwargs)
        function, preserve, inputs = args[0], args[1], args[2:]

        def as_said() -> Any:
            return original(cls, *args, **kwargs)

        def as_said_with_weights(trains: Callable[[Any], None] | None = None) -> Any:
            inputs_too, given = with_weights(function, inputs, trains)
            return original(cls, inputs_too, preserve, *given, **kwargs)

        def say(where: str, what: str, does: str = _NON_REENTRANT) -> None:
            patch.warn("overruled", _OVERRULED.format(where=where, what=what, does=does, patch=patch.id))

        def non_reentrant(asked: Asked | None = None) -> Any:
            with _asking_for(asked or Asked(block)):
                return module.checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=preserve)

        if getattr(_asking, "depth", 0):  # in the recomputation of a segment whose weights are inputs
            return as_said_with_weights()
        if bound_to(function, HANDED) is not None and _shares(block):
            result = non_reentrant(asked := Asked(block))
            if not asked.in_vain:
                _in_backward_of(result, lambda *gradients: say(_SHARED, "wrong gradients"))
            return result
        ddp = _ddp_of(block)
        if ddp is not None and ddp.find_unused_parameters:
            result = as_said_with_weights()
            _in_backward_of(result, lambda *gradients: say(_UNUSED, _ENDS["DDP"], _WEIGHTS_TOO))
            return result
        reduced: Reduced | None
        reduced, wrapper = (_ddps[ddp], "DDP") if ddp is not None else (_zero_of(block), "ZeRO")
        if reduced is None or _backward_number() != -1:  # inside of another segment
            return non_reentrant() if reduced is not None and reduced.twice else as_said()
        twice = functools.partial(say, _TWICE.format(wrapper=wrapper), _ENDS[wrapper])
        told = False
        if reduced.stands(block):
            result = as_said()
        elif told := not reduced.twice and not _is_engine(block):
            reduced.say = functools.partial(twice, _WEIGHTS_TOO)
            result = as_said_with_weights(functools.partial(reduced.trains, Run(block)))
        else:
            result = non_reentrant(asked := Asked(block))
            if not asked.in_vain:
                reduced.say = twice
        reduced.ran(block, result, told=told)
        return result

    patch.wrap(module.CheckpointFunction, "apply", enter)


_ENDS = {
    "DDP": "'marked ready only once', or in ranks that drift apart",
    "ZeRO": "'has already been reduced'",
}


class Asked:
    """A block for which the non-reentrant variant was asked."""

    def __init__(self, block: Any) -> None:
        self.block = block
        self.in_vain = False


@contextlib.contextmanager
def _asking_for(asked: Asked) -> Iterator[None]:
    outer = getattr(_asking, "now", None)
    _asking.now = asked
    try:
        yield
    finally:
        _asking.now = outer


def _came_back(block: Any) -> bool:
    """Whether what stands in the place of torch's ``checkpoint`` (ms-swift's own) made True of our False."""
    asked: Asked | None = getattr(_asking, "now", None)
    if asked is None or asked.block is not block:
        return False
    asked.in_vain = True
    return True


def _shares(block: Any) -> bool:
    """Whether ``block`` leaves keys and values for another, or takes them."""
    return any(getattr(part, mark, False) for part in block.modules() for mark in SHARES)


def with_weights(
    function: Any, inputs: tuple[Any, ...], trains: Callable[[Any], None] | None = None
) -> tuple[Any, tuple[Any, ...]]:
    """The same call, to which the weights that it trains are inputs too, ahead of ``inputs``.

    Args:
        function: that is called.
        inputs: with which it is.
        trains: called in the backward with each weight that this call made use of.
    """
    import torch

    parts = [part for block in blocks_of(function) for part in block.modules()]
    elsewhere = {id(value) for part in parts for value in _kept_beside(part)}
    slots = [
        (part, name, parameter)
        for part in parts
        for name, parameter in part._parameters.items()
        if _is_trained(parameter) and id(parameter) not in elsewhere
    ]
    weights = {id(parameter): parameter for _, _, parameter in slots}
    places = {key: place for place, key in enumerate(weights)}
    partial = function if isinstance(function, functools.partial) else functools.partial(function)

    def call(*given: Any, **keywords: Any) -> Any:
        own, rest = given[: len(places)], given[len(places) :]
        with contextlib.ExitStack() as meanwhile:
            if torch.is_grad_enabled():  # in the recomputation
                meanwhile.enter_context(_inside())
                for part, name, parameter in slots:
                    meanwhile.enter_context(_lent(part._parameters, name, own[places[id(parameter)]]))
            return partial.func(*partial.args, *rest, **keywords)

    ddp = active_ddp() is not None
    handed = tuple(_through().apply(parameter, ddp, trains) for parameter in weights.values())
    return functools.partial(call, **partial.keywords), (*handed, *inputs)


def _kept_beside(part: Any) -> Iterator[Any]:
    """What ``part`` has without asking for a parameter by its name: its own names for some, lists of them."""
    for name, value in vars(part).items():
        if name != "_parameters":
            yield from value if isinstance(value, (list, tuple)) else (value,)


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    depth = getattr(_asking, "depth", 0)
    _asking.depth = depth + 1
    try:
        yield
    finally:
        _asking.depth = depth


def _is_trained(parameter: Any) -> bool:
    return parameter is not None and bool(parameter.requires_grad)


@contextlib.contextmanager
def _lent(slots: dict[str, Any], name: str, tensor: Any) -> Iterator[None]:
    before = slots[name]
    slots[name] = tensor
    try:
        yield
    finally:
        if slots.get(name) is tensor:
            slots[name] = before


@functools.cache
def _through() -> Any:
    import torch

    class Through(torch.autograd.Function):  # type: ignore[misc]
        """A weight by another name: a step between forward and backward is none of the graph's business."""

        @staticmethod
        def forward(ctx: Any, weight: Any, ddp: bool, trains: Callable[[Any], None] | None) -> Any:
            ctx.set_materialize_grads(False)
            ctx.weight, ctx.ddp, ctx.trains = weight, ddp, trains
            return weight.data

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            if gradient is None and ctx.trains is not None:  # of a network a layer was run; of experts a few
                if ctx.ddp:
                    return None, None, None
                # ZeRO's hooks are called for none as well (by newer releases of torch), and cannot take it.
                # Added to the gradient of another run, what stands for none is nothing.
                count_as_none([ctx.weight])
                return none_made(ctx.weight), None, None
            if gradient is None:  # the block made no use of it
                from_nothing([ctx.weight], dropped=ctx.ddp)
                gradient = none_made(ctx.weight)
            elif ctx.trains is not None:
                ctx.trains(ctx.weight)
            return gradient, None, None

    return Through


def _trained_block(function: Any) -> Any:
    """The block that ``function`` runs, if it has something to train."""
    import torch

    with torch._C.DisableTorchFunction():  # a mode of the script's may count what it sees
        for block in blocks_of(function):
            if any(parameter.requires_grad for parameter in block.parameters()):
                return block
    return None


def _ddp_of(block: Any) -> Any:
    """The DDP in whose forward we are, if it reduces what ``block`` trains, in hooks that it counts."""
    ddp = active_ddp()
    if ddp is None or ddp.static_graph or not ddp.require_backward_grad_sync:
        return None
    if ddp not in _ddps:
        named = ddp.module.named_parameters()
        _ddps[ddp] = Reduced(parameter for name, parameter in named if name not in ddp.parameters_to_ignore)
    return ddp if _has(_ddps[ddp], block) else None


def _remember(original: Callable[..., None], self: Any, /, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    if self.partition_gradients or self.overlap_comm:
        _optimizers[self] = Reduced(parameter for group in self.bit16_groups for parameter in group)


def _zero_of(block: Any) -> Reduced | None:
    """What the ZeRO optimizer reduces that has what ``block`` trains, if it reduces in hooks."""
    return next((reduced for reduced in list(_optimizers.values()) if _has(reduced, block)), None)


def _is_engine(block: Any) -> bool:
    """Whether a ZeRO optimizer is ``block``'s own: what it reduces must be there when its segment ends."""
    own = getattr(block, "optimizer", None)
    return own is not None and any(own is each for each in list(_optimizers))


def _has(reduced: Reduced, block: Any) -> bool:
    return any(p.requires_grad and id(p) in reduced.parameters for p in block.parameters())


def _in_backward_of(result: Any, call: Callable[..., None]) -> bool:
    """Have ``call`` called when ``result`` is differentiated; False where it cannot be."""
    import torch

    with torch._C.DisableTorchFunction():  # a mode or a subclass of the script's may count what it sees
        made = [part.grad_fn for part in _flat(result) if isinstance(part, torch.Tensor)]
    node = next((node for node in made if node is not None), None)
    if node is not None:
        node.register_prehook(call)
    return node is not None


def _flat(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _backward_number() -> int:
    import torch

    number: int = torch._C._current_graph_task_id()
    return number
