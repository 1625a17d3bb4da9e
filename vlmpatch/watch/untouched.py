"""A model called once more, and afterwards model, arguments and process are as they were.

Put back are: random states (Python's, numpy's, torch's, its devices'); attributes of every module, with what
lies in lists, dictionaries, plain objects, random generators and arrays that are reached from them and from
hooks; buffers, by name and by value; every other tensor so reached that an operation of torch writes into.
What is not reached (globals, attributes of classes, objects of C) is not seen.

Two things are refused before they do harm: an iterator, which cannot be wound back, and a collective, for
which other ranks would have to come.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import operator
import random
import sys
import threading
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

OBJECTS = 300_000  # that are looked at in search of what a forward may change
DESCEND = 10_000  # elements up to which a container's are looked at, too
ARRAY = 1 << 28  # bytes of an array that is copied
FOREIGN = ("torch.distributed", "torch._C", "torch.utils.data", "deepspeed", "vlmpatch", "multiprocessing")
COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional")
LEAVES = (
    *(type(None), bool, int, float, complex, str, bytes, type, types.ModuleType, types.BuiltinFunctionType),
    *(io.IOBase, logging.Logger, logging.Handler, threading.Thread),
)


class CannotUndo(Exception):
    """Something would not be as it was; the text says what."""


@contextlib.contextmanager
def untouched(model: Any, given: Any) -> Iterator[None]:
    """Whatever a call of ``model`` changes inside the block is put back after it.

    Args:
        model: a module.
        given: what it is called with.

    Raises:
        CannotUndo: something cannot be put back: before the block, or from where it was about to happen.
    """
    before = Snapshot([model, given, [p._backward_hooks for p in model.parameters()]])
    buffers = {id(b): (b, b.detach().clone()) for b in model.buffers() if not b.is_meta}
    sums = [bits(parameter) for parameter in model.parameters()]
    writes = _recorder()(before.storages)
    with contextlib.ExitStack() as last:
        last.callback(_check, model, sums)
        last.callback(_put_back, buffers.values())
        last.callback(writes.undo)
        last.callback(before.undo)
        last.enter_context(_random_states(model))
        last.enter_context(writes)
        yield


def bits(tensor: Any) -> Any:
    """A sum over the bits of a tensor of any shape: exact, in any order, without a copy."""
    import torch

    value = tensor.detach().contiguous()
    kind = {8: torch.int64, 4: torch.int32, 2: torch.int16}.get(value.element_size(), torch.uint8)
    return value.view(kind).sum(dtype=torch.int64)


def _check(model: Any, sums: list[Any]) -> None:
    """A kernel that torch does not know of may have written into a parameter."""
    named = dict(model.named_parameters())
    changed = [name for (name, p), then in zip(named.items(), sums, strict=True) if bits(p).ne(then)]
    if changed:
        raise CannotUndo(f"a forward changes {changed[0]}, and past torch, so that it could not be put back")


def _put_back(kept: Iterable[tuple[Any, Any]]) -> None:
    """Write only where a value has changed: a write counts as one, and a graph may hold the tensor."""
    import torch

    with torch.no_grad():
        for tensor, value in kept:
            if not torch.equal(tensor, value):
                tensor.detach().copy_(value)


class Snapshot:
    """What is reached from ``roots``, as it is now."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self.storages: set[int] = set()  # of the tensors
        self._undo: list[Callable[[], None]] = []
        self._held: dict[int, Any] = {}  # by id; held, so that no id is given twice
        todo = [roots]
        while todo:
            value = todo.pop()
            if isinstance(value, LEAVES) or id(value) in self._held:
                continue
            self._held[id(value)] = value
            if len(self._held) > OBJECTS:
                raise CannotUndo("more hangs on the model than can be kept")
            todo += self._keep(value)

    def undo(self) -> None:
        """Put everything back."""
        for undo in self._undo:
            undo()

    def _keep(self, value: Any) -> Iterable[Any]:
        """Remember how to put ``value`` back, and return what it leads to."""
        if isinstance(value, list | deque | set | bytearray | dict):
            return self._container(value)
        if isinstance(value, tuple | frozenset):
            return value
        if isinstance(value, functools.partial):
            return (value.func, value.args, value.keywords)
        if isinstance(value, types.MethodType):
            return (value.__self__, value.__func__)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if _is(value, "torch", "Tensor"):
            return self._tensor(value)
        if _is(value, "numpy", "ndarray"):
            return self._array(value)
        if (state := _generator(value)) is not None:
            self._undo.append(state)
            return ()
        if isinstance(value, Iterator):
            raise CannotUndo(
                f"the model holds an iterator ({type(value).__name__}), which cannot be wound back"
            )
        own = type(value).__module__.startswith(FOREIGN)
        return () if own else (getattr(value, "__dict__", None),)

    def _container(self, value: Any) -> Iterable[Any]:
        if isinstance(value, dict):
            base: Any = OrderedDict if isinstance(value, OrderedDict) else dict  # a subclass may do more
            then = list(base.items(value))
            now, same = functools.partial(base.items, value), _same_items

            def refill() -> None:
                base.clear(value)
                for key, item in then:
                    base.__setitem__(value, key, item)
        else:
            then = list(value)
            now, same = functools.partial(list, value), _same

            def refill() -> None:
                value.clear()
                (value.update if isinstance(value, set) else value.extend)(then)

        self._undo.append(lambda: None if same(list(now()), then) else refill())
        return then if len(then) <= DESCEND else ()

    def _function(self, value: types.FunctionType) -> Iterable[Any]:
        inner = []
        for cell in value.__closure__ or ():
            try:
                inner.append(then := cell.cell_contents)
            except ValueError:  # not bound yet
                continue
            self._undo.append(functools.partial(setattr, cell, "cell_contents", then))
        return [*inner, value.__defaults__, value.__kwdefaults__, vars(value)]

    def _tensor(self, value: Any) -> Iterable[Any]:
        if (storage := _storage(value)) is not None:
            self.storages.add(storage)
            then = value.data

            def undo() -> None:
                if value.data_ptr() != then.data_ptr() or value.shape != then.shape:
                    value.data = then

            self._undo.append(undo)
        return ()

    def _array(self, value: Any) -> Iterable[Any]:
        if value.nbytes > ARRAY:
            raise CannotUndo("the model holds an array that is too large to be kept")
        then = value.copy()

        def undo() -> None:
            if value.tobytes() != then.tobytes():
                value[...] = then

        if value.flags.writeable and not value.dtype.hasobject:
            self._undo.append(undo)
        return ()


def _same(now: list[Any], then: list[Any]) -> bool:
    return len(now) == len(then) and all(map(operator.is_, now, then))


def _same_items(now: list[Any], then: list[Any]) -> bool:
    return len(now) == len(then) and all(a is b and c is d for (a, c), (b, d) in zip(now, then, strict=True))


def _is(value: Any, module: str, name: str) -> bool:
    """Whether it is of that class, which may not be imported."""
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(value, cls)


def _generator(value: Any) -> Callable[[], None] | None:
    """How to put a random generator back; None for what is none."""
    if isinstance(value, random.Random):
        return functools.partial(value.setstate, value.getstate())
    if _is(value, "torch", "Generator"):
        return functools.partial(value.set_state, value.get_state())
    if _is(value, "numpy.random", "RandomState"):
        return functools.partial(value.set_state, value.get_state())
    if _is(value, "numpy.random", "Generator"):
        inner = value.bit_generator
        return functools.partial(setattr, inner, "state", inner.state)
    return None


def _storage(tensor: Any) -> int | None:
    """Which memory it lies in; None for what has none of its own."""
    try:
        return None if tensor.is_meta or not tensor.data_ptr() else int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError, AttributeError):
        return None


@contextlib.contextmanager
def _random_states(model: Any) -> Iterator[None]:
    """What is drawn inside the block is drawn again after it."""
    import torch

    of_numpy = sys.modules.get("numpy.random")
    undo: list[Callable[[], None]] = [functools.partial(random.setstate, random.getstate())]
    if of_numpy is not None:
        undo.append(functools.partial(of_numpy.set_state, of_numpy.get_state()))
    undo.append(functools.partial(torch.set_rng_state, torch.get_rng_state()))
    for device in {p.device for p in model.parameters() if p.device.type not in ("cpu", "meta")}:
        backend: Any = getattr(torch, device.type)
        undo.append(functools.partial(backend.set_rng_state, backend.get_rng_state(device), device))
    try:
        yield
    finally:
        for each in undo:
            each()


@functools.cache
def _recorder() -> Any:
    """A class that is made when it is asked for: it derives from one of torch."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):  # type: ignore[misc]
        """Sees every operation: keeps what is about to be written over, and refuses collectives."""

        def __init__(self, storages: set[int]) -> None:
            super().__init__()
            self.storages = storages
            self.kept: dict[Any, tuple[Any, Any]] = {}

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if getattr(func, "namespace", "") in COLLECTIVES:
                raise CannotUndo(f"the model communicates in its forward or backward ({func})")
            for tensor in _written(func, args, kwargs):
                self.keep(tensor)
            return func(*args, **kwargs)

        def keep(self, tensor: Any) -> None:
            """As it is before the first write into this part of its memory."""
            storage = _storage(tensor)
            if storage in self.storages:
                key = (storage, tensor.storage_offset(), tensor.shape, tensor.stride())
                if key not in self.kept:
                    self.kept[key] = (tensor.detach(), tensor.detach().clone())

        def undo(self) -> None:
            """Put the values back, the last first: parts of one memory may overlap."""
            _put_back(reversed(self.kept.values()))

    return Recorder


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """The tensors that an operation says it writes into."""
    for place, argument in enumerate(_arguments(func)):
        name, writes = argument
        if not writes:
            continue
        value = args[place] if place < len(args) else kwargs.get(name)
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if _is(tensor, "torch", "Tensor"):
                yield tensor


@functools.cache
def _arguments(func: Any) -> tuple[tuple[str, bool], ...]:
    """Name and whether it is written into, of each argument."""
    schema = getattr(func, "_schema", None)
    return tuple(
        (argument.name, argument.alias_info is not None and argument.alias_info.is_write)
        for argument in (schema.arguments if schema is not None else ())
    )
