"""A module of one's own that calls a tower by itself, where a batch has images, and other ranks wait.

What the user sees: under ZeRO-3, FSDP1 and FSDP2 a hang (NCCL), or an abort (gloo), as soon as one rank's
batch has an image and another's has none, although a model of transformers runs its tower on every rank
(``batches-without-images``). The training has a module of its own around the model, for a second loss, an
embedding or a reward, whose forward calls ``get_image_features`` or the tower once more under
``if pixel_values is not None``. Or the model is no model of transformers: code of others, a checkpoint's own
included, whose forward runs its ``vision_tower`` and ``multi_modal_projector``, or its ``vision_model`` and
``connector``, for an image alone (Aria's and Mantis' training programs); or whose forward runs parts by names
of its own, and hands the embeddings that it made to a language model of transformers.

Why: those calls gather weights, and a gather takes every rank. The same holds for a head that is called on
the features alone.

Every transformers, DeepSpeed and torch.

The change: in the forward of such a module ranks agree, before each call of a part of it and at its end, on
what comes next: one all-reduce of two integers. Where they differ, the smallest part that some rank is about
to call comes first. A rank that did not mean to call it does so too, on a stand-in of the same shapes, which
the rank that did tells it. Then all ask again. What came out is tied to what the forward returns, on every
rank, in a way that passes zeros back and adds no number, so that a backward gathers alike everywhere. Random
numbers and buffers are what they would have been.

Of a model of others the parts are its children, and what they have outside of their blocks. A model in PEFT's
is one, too, whose tuner calls its forward past its hooks. Where its ranks run them alike, as where its code
runs the tower on something blank for a text, nothing is run beside them. Where they differ, and one gives its
language model words, it gives it their embeddings instead, as the others do. What came out is tied to the
``inputs_embeds`` that the language model is given: of one frozen but for LoRA they decide how far the
backward goes. All that comes out of a tower is tied: a layer that no image trains gets zeros where it would
get nothing, so that a weight decay acts on it.

Left alone: one process; a module that is no wrapper of a model which ``batches-without-images`` knows, nor a
model of others with such parts, or whose forward, with the methods it calls, names no tower; what nobody
gathers (DDP, ZeRO-1 and 2, weights that are whole); what is compiled; one with a ``SyncBatchNorm``, which
counts what a stand-in brings; a part without weights, or whose weights nobody shards.
Not fixed: a call outside of the wrapper's forward, as in a trainer's ``compute_loss``; one that the wrapper
checkpoints by itself; arguments beside tensors, numbers, words and what holds them, which a warning names.

Upstream: https://github.com/deepspeedai/DeepSpeed/issues/7044
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.blank_image import add_nothing, features
from .._shared.buffers import kept_buffers
from .._shared.compiling import compiling
from .._shared.distributed import largest_of_each, rank, reduced_to_largest, world
from .._shared.missing_gradients import from_nothing
from .._shared.model_wrappers import (
    EMBEDDINGS,
    MAKE_FEATURES,
    called_as,
    models_in,
    own_towers,
    said_in_forward,
    wrapper_in,
)
from .._shared.random_numbers import drawn_aside
from .._shared.told_calls import every_tensor, mapped, packed, tensors, unpacked
from .._shared.towers import outside
from .._shared.training_group import ZERO3, sharding, waiting_groups

# What is told of the modules that are going to be gathered, and by which of its arguments.
_TOLD = {
    "DeepSpeedZeRoOffload.__init__": Argument(0, "module"),
    "FullyShardedDataParallel.__init__": Argument(0, "module"),
    "FSDPState.init": Argument(0, "modules"),
}
_COMPILED = ("_orig_mod", "_compiled_call_impl")
_END = 0  # what a rank is about to do where its forward is over
_WORDS = Argument(0, "input_ids")  # of a language model
_LENGTH = 1 << 40  # more bytes than any call has


def look(code: Code) -> str | None:
    """What sets up the gathering must be told of a module first."""
    for name, argument in _TOLD.items():
        function = code.function(name)
        if function is not None and function.parameters[:2] == ("self", argument.name):
            return None
    raise Unrecognised(f"{code.module} sets up no module as any known release does")


def apply(patch: Patch, module: ModuleType) -> None:
    """Find wrappers where their gathering is set up."""
    for name, argument in _TOLD.items():
        owner, _, method = name.partition(".")
        if hasattr(module, owner):
            _wrap_to_find(patch, getattr(module, owner), method, argument)


# What watches each wrapper; it lives by its hooks, and is gone when an undo has taken them away.
_watched: WeakKeyDictionary[Any, ref[_Wrapper]] = WeakKeyDictionary()


def _wrap_to_find(patch: Patch, owner: type, name: str, argument: Argument) -> None:
    def set_up(original: Callable[..., None], self: Any, /, *args: Any, **kwargs: Any) -> None:
        told = argument.of(args, kwargs)
        original(self, *args, **kwargs)
        for module in told if isinstance(told, (tuple, list)) else (told,):
            if (wrapper := wrapper_in(module)) is not None:
                _watch(patch, wrapper).calls_of(called_as(wrapper, module))

    patch.wrap(owner, name, set_up)


def _watch(patch: Patch, wrapper: Any) -> _Wrapper:
    known = _watched[wrapper]() if wrapper in _watched else None
    if known is None or known.patch is not patch:
        known = _Wrapper(patch, wrapper)
        _watched[wrapper] = ref(known)
    return known


# --- what a wrapper calls ---------------------------------------------------------------------------------


class _Part(NamedTuple):
    """What a wrapper may call: a module in it, or what a model has to make features."""

    owner: Any
    method: str = ""

    @property
    def modules(self) -> list[Any]:
        """What it runs: of a method the towers and projectors of its model."""
        return [*outside(self.owner).values()] if self.method else [self.owner]

    @property
    def size(self) -> int:
        """A method has as many modules as those that it calls, and one more."""
        return sum(1 for module in self.modules for _ in module.modules()) + bool(self.method)

    def run(self, args: Any, kwargs: dict[str, Any]) -> Any:
        return (getattr(self.owner, self.method) if self.method else self.owner)(*args, **kwargs)

    def made(self, output: Any) -> list[Any]:
        """What of its ``output`` may lead to a gradient."""
        found = features(output) if self.method else [*tensors(output)]
        return [tensor for tensor in found if tensor.requires_grad]


_callers: WeakKeyDictionary[Any, ref[_Wrapper]] = WeakKeyDictionary()  # of each model in a wrapper


def _wrap_methods(patch: Patch, model: Any) -> Iterator[_Part]:
    """Of ``model``, those that make features, which tell its wrapper from now on."""
    for name in sorted(MAKE_FEATURES):
        owner = next((cls for cls in type(model).__mro__ if name in vars(cls)), None)
        if owner is None:
            continue
        _wrap_method(patch, owner, name)
        yield _Part(model, name)


def _wrap_method(patch: Patch, cls: type, name: str) -> None:
    tracing = compiling()

    def told(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        wrapper = None if tracing() or self not in _callers else _callers[self]()
        if wrapper is None:
            return original(self, *args, **kwargs)
        part = _Part(self, name)
        wrapper.called(part, args, kwargs)
        output = None
        try:
            output = original(self, *args, **kwargs)
        finally:
            wrapper.returned(part, output)
        return output

    patch.wrap(cls, name, told)


# --- one wrapper ----------------------------------------------------------------------------------------


class _Wrapper:
    """A wrapper on this rank, whose parts are watched from its first forward on."""

    def __init__(self, patch: Patch, module: Any) -> None:
        self.patch, self.module = patch, ref(module)
        self.names = {*said_in_forward(type(module)).names}
        self.parts: list[_Part] = []  # a later one comes first
        self.places: dict[tuple[int, str], int] = {}  # from 1 on: 0 is the end of a forward
        self.towers: set[int] = set()  # of a model of others
        self.off = False
        self.forward: _Forward | None = None
        self.tracing = compiling()
        self.called_as: list[ref[Any]] = []  # the modules whose call is a forward of it; none of a copy's

    def calls_of(self, modules: list[Any]) -> None:
        """From now on a call of these is a forward of the wrapper."""
        for module in modules:
            if not self.is_called_as(module):
                self.called_as.append(ref(module))
                hook = self.patch.hook
                hook(module.register_forward_pre_hook, self.begin, with_kwargs=True, prepend=True)
                hook(module.register_forward_hook, self.end, prepend=True, always_call=True)

    def is_called_as(self, module: Any) -> bool:
        """Whether a call of ``module`` is a forward of the wrapper."""
        return any(known() is module for known in self.called_as)

    def begin(self, called: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Forward pre-hook of what is called."""
        import torch

        self.forward = None
        module, again = self.module(), torch._C._current_graph_task_id() != -1
        if self.off or again or not self.is_called_as(called) or self.tracing() or world() == 1:
            return
        if not (groups := waiting_groups([module])):
            return
        if not self.parts:
            self._watch(module)
        if not self.off:
            self.forward = _Forward(self, groups, _device(module, args, kwargs))

    def _watch(self, module: Any) -> None:
        from torch.nn import SyncBatchNorm

        every = [*module.modules()]
        self.off = any(isinstance(part, SyncBatchNorm) or _is_compiled(part) for part in every)
        if self.off:
            return
        own, models = [getattr(module, name) for name in own_towers(module)], models_in(module)
        self.towers = towers = {id(inner) for tower in own for inner in tower.modules()}
        # Nothing is gathered for a part whose weights nobody shards: what it counts is its own rank's.
        parts = _outside_blocks(module, [module] if towers else models)
        watched = [part for part in parts if sharding([part])]
        self.parts = [_Part(part) for part in watched]
        for model in models:
            _callers[model] = ref(self)
            self.parts += _wrap_methods(self.patch, model)
        # What a language model is given can be a cache, of which no rank is told: a tower comes before it.
        self.parts.sort(key=lambda part: (id(part.owner) in towers, -part.size))
        self.places = {(id(part.owner), part.method): n for n, part in enumerate(self.parts, 1)}
        for part in watched:
            self.patch.hook(part.register_forward_pre_hook, self.before, with_kwargs=True, prepend=True)
            # Behind the engine's own: they put into what comes out where its backward begins.
            self.patch.hook(part.register_forward_hook, self.after, always_call=True)

    def before(self, module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Forward pre-hook of its modules."""
        self.called(_Part(module), args, kwargs)
        forward: _Forward | None = self.forward
        if forward is None or forward.inside != _Part(module) or not self.towers or id(module) in self.towers:
            return None
        if embedded := forward.differed and hasattr(module, "get_input_embeddings"):
            args, kwargs = self._embedded(forward, module, args, kwargs)
        # Of a language model frozen but for LoRA, what it is given decides how far its backward goes.
        if (given := forward.tied(self.module(), kwargs.get(EMBEDDINGS))) is None:
            return (args, kwargs) if embedded else None
        forward.clear()
        return args, {**kwargs, EMBEDDINGS: given}

    def _embedded(self, forward: _Forward, module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A call of a language model with the embeddings of its words, where other ranks give it such."""
        forward.inside = None
        words = _WORDS.of(args, kwargs)
        if kwargs.get(EMBEDDINGS) is None and words is not None:
            kwargs = {**kwargs, EMBEDDINGS: module.get_input_embeddings()(words)}
            args, kwargs = _WORDS.replaced(args, kwargs, None)
        self.called(_Part(module), args, kwargs)
        return args, kwargs

    def after(self, module: Any, args: Any, output: Any) -> None:
        """Forward hook of its modules."""
        self.returned(_Part(module), output)

    def called(self, part: _Part, args: Any, kwargs: dict[str, Any]) -> None:
        """``part`` is called."""
        forward: _Forward | None = self.forward
        place = self.places.get((id(part.owner), part.method))
        if forward is not None and forward.inside is None and place is not None:
            forward.agree(place, (args, kwargs))
            forward.inside = part

    def returned(self, part: _Part, output: Any) -> None:
        """``part`` has returned; nothing comes out where an error went through it."""
        forward: _Forward | None = self.forward
        if forward is not None and forward.inside == part:
            forward.inside = None
            forward.note(part, output)

    def end(self, called: Any, args: Any, output: Any) -> Any:
        """Forward hook of the same; nothing comes out where an error went through it."""
        forward, self.forward = self.forward, None
        if forward is None or output is None:
            return None
        forward.agree(_END, None)
        return forward.tied(self.module(), output)


def _outside_blocks(wrapper: Any, models: list[Any]) -> list[Any]:
    known = {id(part) for model in models for part in _within_blocks(model)}
    return [part for part in wrapper.modules() if part is not wrapper and id(part) not in known]


def _within_blocks(model: Any) -> Iterator[Any]:
    """The insides of its numbered blocks: a wrapper calls towers and heads, not these."""
    from torch.nn import ModuleList

    for blocks in model.modules():
        if isinstance(blocks, ModuleList):
            yield from (inner for block in blocks for inner in block.modules() if inner is not block)


def _is_compiled(module: Any) -> bool:
    return any(getattr(module, name, None) is not None for name in _COMPILED)


def _device(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Where it computes: where its input lies, be it a text alone, for weights may be kept on a CPU."""
    given = [*every_tensor([args, kwargs]), next(module.parameters())]
    return next((tensor.device for tensor in given if tensor.device.type != "cpu"), given[0].device)


# --- one forward ----------------------------------------------------------------------------------------


class _Forward:
    """One forward of a wrapper: what its ranks call, each for itself or for another."""

    def __init__(self, wrapper: _Wrapper, groups: list[Any], device: Any) -> None:
        self.wrapper, self.groups, self.device = wrapper, groups, device
        self.inside: _Part | None = None  # what runs
        self.kept = False  # whether other ranks run it for this one's sake
        self.differed = False  # whether its ranks have been about to do different things
        self.stood_in: list[_Part] = []  # what this one ran for the sake of others
        self.found: list[Any] = []  # what came out of what some ranks alone meant to run

    def agree(self, place: int, call: Any) -> None:
        """Until every rank is about to run this part, or all others stand in for those that are."""
        while not self.wrapper.off:
            most, least = largest_of_each([place, -place], self.groups, self.device)
            if most == -least:
                return
            self.differed = True
            told = self._told(call if most == place else None)
            if told is None:
                wrapper: _Wrapper = self.wrapper
                wrapper.off = True  # from now on each rank runs what it has to
                return
            if most == place:
                self.kept = True
                return
            self._stand_in(self.wrapper.parts[most - 1], told)

    def _told(self, call: Any) -> bytes | None:
        """The call of the last of the ranks that have one, as every rank is told it."""
        import torch

        said = b"" if call is None else self._packed(call)
        asked = (rank() + 1) * _LENGTH + len(said) if call is not None else 0
        (which,) = largest_of_each([asked], self.groups, self.device)
        if not (length := which % _LENGTH):
            return None
        here = [*said] if which == asked else [0] * length
        told = torch.tensor(here, dtype=torch.uint8)
        return bytes(reduced_to_largest(told, self.groups, self.device).tolist())

    def _packed(self, call: Any) -> bytes:
        import torch

        kind = self.device.type
        cast = (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        try:
            return packed((call, torch.is_grad_enabled(), cast))
        except TypeError as error:
            self.wrapper.patch.warn(
                "cannot be told",
                "a rank without images cannot be told how the tower was called here "
                f"(an argument is a {error}), so that it will wait: give every batch an image",
                own=True,
            )
            return b""

    def _stand_in(self, part: _Part, told: bytes) -> None:
        import torch

        (args, kwargs), grad, (enabled, dtype) = unpacked(told, self.device)
        weights = (parameter for module in part.modules for parameter in module.parameters())
        self.inside = part
        with contextlib.ExitStack() as aside:
            aside.enter_context(drawn_aside([self.device, *(weight.device for weight in weights)]))
            aside.enter_context(kept_buffers(part.modules))
            aside.enter_context(torch.set_grad_enabled(grad))
            aside.enter_context(torch.autocast(self.device.type, dtype=dtype, enabled=enabled))
            output = part.run(args, kwargs)
        self.inside, self.kept = None, True
        self.stood_in.append(part)
        self.note(part, output)

    def note(self, part: _Part, output: Any) -> None:
        """Keep what has to be tied of what came out."""
        if self.kept:
            self.found += part.made(output)
        self.kept = False

    def clear(self) -> None:
        """What was to be tied is."""
        self.stood_in, self.found = [], []

    def tied(self, wrapper: Any, output: Any) -> Any:
        """``output``, whose backward passes all that ranks ran for one another."""
        import torch

        if output is None or not self.found or not torch.is_grad_enabled():
            return None
        own = [p for name, p in wrapper.named_parameters(recurse=False) if name in self.wrapper.names]
        ran = [module for part in self.stood_in for module in part.modules]
        blank = {id(p): p for p in [*own, *(p for module in ran for p in module.parameters())]}
        told = sharding([wrapper]) == ZERO3 and bool(ran)
        begun = functools.partial(from_nothing, blank.values(), dropped=False) if told else lambda: None
        there = [*tensors(output)]
        chosen = {id(tensor) for tensor in [t for t in there if t.requires_grad] or there[:1]}
        made: dict[int, Any] = {}

        def tie(tensor: Any) -> Any:
            if id(tensor) not in chosen:
                return tensor
            if id(tensor) not in made:
                made[id(tensor)] = add_nothing(tensor, [*self.found, *own], begun)
            return made[id(tensor)]

        return mapped(output, tie)
