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

The change: at the one door of the reentrant variant, a block with something to train goes through the
non-reentrant one where that outcome is known: inside a DDP that searches for unused parameters; from the
first block on that ran twice before a backward; and where a block is handed such a dictionary. As the first
of two runs cannot be told from an only one, a block's runs up to its first backward are non-reentrant too,
and recomputed to their end; their gradients are the same. A block whose forward asks in which grad mode it
runs is not: it would see another. Nor is one that keeps what it makes in its first run (a mask, a scale): the
recomputation, which does not make it again, saves fewer tensors, and the non-reentrant variant refuses that.
It is said once, in the backward that would have ended the run. Everywhere
else (one process, DDP with a static graph or in ``no_sync``, ZeRO-1 without ``overlap_comm``, ZeRO-3, FSDP,
blocks that run once) what the user said stands, and nothing is printed. So it does where another library has
put a function in the place of torch's that asks for True again.

Upstream: https://github.com/huggingface/accelerate/issues/389,
https://github.com/modelscope/ms-swift/issues/3128
"""

from __future__ import annotations

import contextlib
import dis
import functools
import threading
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.checkpointed import blocks_of, bound_to
from .._shared.training_group import active_ddp

DOOR = "CheckpointFunction.apply(function, preserve, *args)"
OPTIMIZER = "DeepSpeedZeroOptimizer"
HANDED = "shared_kv_states"  # in which blocks leave keys and values for others
GRAD_MODE, CHECKPOINTS = "is_grad_enabled", "_gradient_checkpointing_func"
READS = ("LOAD_ATTR", "LOAD_CONST")  # self.mask, and the name in hasattr(self, "mask")
SHARES = ("store_full_length_kv", "is_kv_shared_layer")  # what an attention says that does either
_OVERRULED = (
    "use_reentrant=True was passed, and {where} it can only end in {what}. This run uses the non-reentrant "
    "variant, whose gradients are the same. Pass False; VLMPATCH_DISABLE={patch} insists on True."
)
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
        self._window = 0  # between two backwards
        self._backward = -1  # the latest, by autograd's number
        self._ran: WeakKeyDictionary[Any, tuple[int, ref[Any]]] = WeakKeyDictionary()
        self._tried: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
        self._differentiated: WeakKeyDictionary[Any, tuple[int, object]] = WeakKeyDictionary()

    def stands(self, block: Any) -> bool:
        """Whether ``block`` may run as the user said, as far as is known when it is about to run."""
        window, graph = self._ran.get(block, (self._window, None))
        if window < self._window:
            self._tried[block] = True
        elif graph is not None and graph() is not None:
            self.twice = True
        return block in self._tried and not self.twice

    def ran(self, block: Any, result: Any) -> None:
        """Remember that ``block`` ran, for as long as the graph of its ``result`` is there."""
        block_of, window, run = ref(block), self._window, object()

        def seen(*gradients: Any) -> None:
            if (number := _backward_number()) != self._backward:
                self._backward = number
                self._window += 1
            if (block := block_of()) is not None:
                self._certain(block, window, run)

        if _in_backward_of(result, seen):
            self._ran[block] = (window, ref(seen))

    def _certain(self, block: Any, window: int, run: object) -> None:
        """Two runs of one window are differentiated: a graph may also be kept, and thrown away."""
        last, other = self._differentiated.get(block, (-1, run))
        if last == window and other is not run and self.say is not None:
            self.say()
        self._differentiated[block] = (window, run)


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
        function, preserve, *inputs = args

        def as_said() -> Any:
            return original(cls, *args, **kwargs)

        def say(where: str, what: str) -> None:
            patch.warn("overruled", _OVERRULED.format(where=where, what=what, patch=patch.id))

        def non_reentrant(asked: Asked | None = None, whole: bool = False) -> Any:
            with _asking_for(asked or Asked(block)), _recomputed_whole(module) if whole else _as_it_is():
                return module.checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=preserve)

        def overruled(where: str, what: str) -> Any:
            result = non_reentrant(asked := Asked(block))
            if not asked.in_vain:
                _in_backward_of(result, lambda *gradients: say(where, what))
            return result

        if bound_to(function, HANDED) is not None and _shares(block):
            return overruled(_SHARED, "wrong gradients")
        ddp = _ddp_of(block)
        if ddp is not None and ddp.find_unused_parameters:
            return overruled(_UNUSED, "'marked ready only once'")
        reduced, wrapper = (_ddps[ddp], "DDP") if ddp is not None else (_zero_of(block), "ZeRO")
        if reduced is None or _backward_number() != -1:  # inside of another segment
            return non_reentrant() if reduced is not None and reduced.twice else as_said()
        if reduced.stands(block) or (not reduced.twice and _runs_otherwise(block)):
            result = as_said()
        else:
            result = non_reentrant(asked := Asked(block), whole=not reduced.twice)
            if reduced.twice and not asked.in_vain:
                reduced.say = functools.partial(say, _TWICE.format(wrapper=wrapper), _ENDS[wrapper])
        reduced.ran(block, result)
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


def _recomputed_whole(module: ModuleType) -> contextlib.AbstractContextManager[Any]:
    """Hooks at the end of a block run in its recomputation too, as in the reentrant variant."""
    whole: contextlib.AbstractContextManager[Any] = module.set_checkpoint_early_stop(False)
    return whole


_as_it_is = contextlib.nullcontext


def _came_back(block: Any) -> bool:
    """Whether what stands in the place of torch's ``checkpoint`` (ms-swift's own) made True of our False."""
    asked = getattr(_asking, "now", None)
    if asked is None or asked.block is not block:
        return False
    asked.in_vain = True
    return True


def _shares(block: Any) -> bool:
    """Whether ``block`` leaves keys and values for another, or takes them."""
    return any(getattr(part, mark, False) for part in block.modules() for mark in SHARES)


def _runs_otherwise(block: Any) -> bool:
    """Whether a forward of ``block`` may do otherwise in a recomputation that the user did not ask for."""
    classes = {type(part) for part in block.modules() if not type(part).__module__.startswith("torch.")}
    return any(_looks(code) for cls in classes for code in _codes_within(cls.forward))


@functools.cache
def _looks(code: CodeType) -> bool:
    """Whether it asks for the grad mode, or reads an attribute, or asks for it by name, before it sets it."""
    if GRAD_MODE in code.co_names:
        return True
    read = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in READS and isinstance(instruction.argval, str):
            read.add(instruction.argval)
        elif instruction.opname == "STORE_ATTR" and instruction.argval in read:
            return True
    return False


def _codes_within(forward: Any) -> Iterator[CodeType]:
    """The code of ``forward`` and of what it decorates, without what asks only whether to checkpoint.

    That is, from transformers 5.24 on, every layer's; the checkpoint runs what is beneath it.
    """
    while forward is not None:
        code = getattr(forward, "__code__", None)
        if code is not None and CHECKPOINTS not in code.co_names:
            yield code
        forward = getattr(forward, "__wrapped__", None)


def _trained_block(function: Any) -> Any:
    """The block that ``function`` runs, if it has something to train."""
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


def _has(reduced: Reduced, block: Any) -> bool:
    return any(p.requires_grad and id(p) in reduced.parameters for p in block.parameters())


def _in_backward_of(result: Any, call: Callable[..., None]) -> bool:
    """Have ``call`` called when ``result`` is differentiated; False where it cannot be."""
    node = next(filter(None, (getattr(part, "grad_fn", None) for part in _flat(result))), None)
    if node is not None:
        node.register_prehook(call)
    return node is not None


def _flat(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _backward_number() -> int:
    import torch

    number: int = torch._C._current_graph_task_id()
    return number
