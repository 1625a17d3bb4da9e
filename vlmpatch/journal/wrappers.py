"""Wrappers around a function: one plain function of ours per attribute, whatever number of patches wrap it.

It looks in one place what to call, so a wrapper is switched on and off wherever references to the
function have gone, and wrappers of several patches go in any order. Ours is a plain function: torch.compile
and strict export trace through it, while they see through any object that merely is called like one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import ClassMethodDescriptorType, FunctionType, ModuleType
from typing import Any, NamedTuple

from vlmpatch.journal.aliases import Name, beside, everywhere, is_of_the_package, own_name
from vlmpatch.journal.dispatching import dispatching
from vlmpatch.journal.half_made import steps_aside
from vlmpatch.journal.inherited import layers
from vlmpatch.journal.locations import ABSENT, Attribute, Location, chain, path
from vlmpatch.journal.overrides import Override
from vlmpatch.journal.tracing import leave_alone, own_code, take_for_tuples

MARK = "__vlmpatch__"
Wrapper = Callable[..., Any]


class Foreign(TypeError):
    """What lies there is no function that can be wrapped without changing how it is called."""


class WrongSignature(TypeError):
    """A wrapper that would refuse, or misread, calls that its target takes."""


class Link:
    """One wrapper: whose, what, and whether it is on."""

    def __init__(self, key: Any, wrapper: Wrapper) -> None:
        self.key = key
        self.wrapper = wrapper
        self.on = True


class Marks(set[str]):
    """The patches whose wrappers a function carries, for other copies of vlmpatch to see."""

    layers: WrapperChain  # the name by which other copies ask for it

    def __reduce__(self) -> tuple[Any, ...]:
        return set, ()  # a copy of the function carries none


class Top(NamedTuple):
    """What a function of ours calls, what would be called without it, and when its wrapper steps aside.

    A function that no module has by its name (cloudpickle sends a script's own classes to other processes) is
    pickled with all that it knows: of us that is the original alone.
    """

    wrapper: Wrapper
    below: Callable[..., Any]
    original: Callable[..., Any]
    aside: Callable[..., Any]

    def __reduce__(self) -> tuple[Any, ...]:
        call = functools.partial(self.original)
        never = "".format  # what no arguments make true, and any process has by this name
        return tuple, ((type(call).__call__, call, call, never),)


class Callee(NamedTuple):
    """What lies at a location, what to call in its stead, and the descriptor our function is stored in."""

    raw: Any
    call: Callable[..., Any]
    kind: type | None


class WrapperChain:
    """All our wrappers on ``owner.name``.

    Args:
        journal: whose wrappers these are.
        owner: a module, a class, or any object with the attribute.
        name: the attribute.

    Raises:
        AttributeError: there is no such attribute.
        Foreign: it cannot be wrapped.
    """

    def __init__(self, journal: object, owner: Any, name: str) -> None:
        self.journal = journal
        location = Attribute(owner, name)
        found = self.found = find(owner, name, getattr(owner, "__dict__", {}).get(name, ABSENT))
        self._links: list[Link] = []
        self._original = found.call
        self._head = [Top(_through, found.call, found.call, _never)]
        self._between: list[Any] = []  # our functions from there to the original
        self.function = dispatching(self._head, found.call, getattr(found.raw, "__func__", found.raw))
        _show_parameters(self.function, found.call)
        _name(self.function, owner, name, found)
        self.aliases: list[Override] = []  # what lies at other locations because of us
        self.gone = False  # whether the owner has run again, and holds none of it any more
        self.marks = Marks()
        self.marks.layers = self
        setattr(self.function, MARK, self.marks)
        # What lies at the location: undone by the stack of values, with what others of ours put there.
        self.value = Override(
            location, found.kind(self.function) if found.kind else self.function, MARK, self._rebase
        )

    def takes_calls_through(self, wrapper: Wrapper) -> None:
        """Raises ``WrongSignature`` where ``wrapper`` does not; see ``signatures``."""
        from vlmpatch.journal import signatures  # not before it is asked: inspect takes its time

        owner = self.value.location.owner()
        bound = isinstance(owner, type) and self.found.kind is not staticmethod
        if why := signatures.difference(wrapper, self.found.call, bound):
            name = f"{wrapper.__module__}.{getattr(wrapper, '__qualname__', wrapper)}"
            where = path(owner, self.value.location.name)
            raise WrongSignature(f"{name} does not take every call of {where}: {why}")

    def new_aliases(self) -> list[Override]:
        """What is to lie at the other locations that have what we lie on."""
        location, raw = self.value.location, self.value.below
        owner = location.owner()
        found: Iterable[Name] = ()
        if isinstance(owner, ModuleType):
            own = own_name(raw) or own_name(self.function)
            if own is not None and is_of_the_package(own, owner):
                found = everywhere(raw, {location.name, own.name})
        elif isinstance(owner, type) and raw is not ABSENT:
            found = beside(owner, raw, location.name)
        others = [each for each in found if not (each.holder is owner and each.name == location.name)]
        return [Override(Attribute(*each), self.value.value, MARK) for each in others]

    def lies_at(self, location: Location) -> bool:
        """Whether it was put there, by a patch that asked for it or beside that."""
        return self.value.location.same(location) or any(
            each.location.same(location) for each in self.aliases
        )

    def link(self, key: Any) -> Link | None:
        """The wrapper of that key, on or off."""
        return next((link for link in self._links if link.key == key), None)

    def acts(self, key: Any) -> bool:
        """Whether the wrapper of that key is there and on."""
        link = self.link(key)
        return link is not None and link.on

    def switch(self, key: Any, wrapper: Wrapper, on: bool) -> None:
        """Switch the wrapper ``key`` on, where it was or else outermost, or off."""
        link = self.link(key)
        if link is None:
            link = Link(key, wrapper)
            self._links.append(link)
        link.wrapper, link.on = wrapper, on
        self._compose()

    def _rebase(self, raw: Any) -> None:
        # What we lay on was a value of ours, and has gone.
        self.found = find(self.value.location.owner(), self.value.location.name, raw)
        self._original = self.found.call
        self._compose()

    def _compose(self) -> None:
        active = [link for link in self._links if link.on]
        head = Top(_through, self._original, self._original, _never)
        raw = getattr(self.found.raw, "__func__", self.found.raw)
        self._between = []
        for link in active:
            below = self._original if head.wrapper is _through else dispatching([head], head.below, raw)
            self._between += [below, *layers(link.wrapper)]
            head = Top(link.wrapper, below, self._original, _aside(link))
        self.trace_as_original()
        self._head[0] = head
        self.marks.clear()
        self.marks.update(str(link.key[0]) for link in active)

    def trace_as_original(self) -> None:
        """Let torch.compile begin no graph with functions of ours where it would not with the original."""
        original = getattr(self.found.raw, "__func__", self.found.raw)
        take_for_tuples(Top)
        leave_alone((each for each in (self.function, *self._between) if each is not original), original)


def chain_of(function: Any, journal: object) -> WrapperChain | None:
    """The wrappers whose function this very one is, when they are ``journal``'s."""
    marks = getattr(function, MARK, None)
    wrappers = marks.layers if isinstance(marks, Marks) else None
    return wrappers if wrappers and wrappers.journal is journal and wrappers.function is function else None


def carried(function: Any, patch: str, journal: object) -> bool:
    """Whether ``function`` or one it wraps has a wrapper of ``patch`` from anybody but ``journal``."""
    for candidate in chain(function):
        marks = getattr(candidate, MARK, None)
        if isinstance(marks, Marks) and marks.layers.journal is journal:
            continue
        if patch == marks or (isinstance(marks, set) and patch in marks):  # 0.1.0 marked with a string
            return True
    return False


def standing(location: Location, raw: Any) -> Any:
    """``raw``, or what lies under it where it is a wrapper that another copy of vlmpatch has given up.

    It was switched off, or what it lay on has run again; the other copy could not take it away while ours lay
    on top, and has forgotten it.
    """
    for _ in range(100):
        function = getattr(raw, "__func__", raw)
        marks = getattr(function, MARK, None)
        wrappers = getattr(marks, "layers", None)
        if wrappers is None or wrappers.function is not function:
            break
        if not getattr(wrappers, "gone", False) and (marks or not wrappers.value.location.same(location)):
            break
        raw = wrappers.value.below
    return raw


def find(owner: Any, name: str, own: Any) -> Callee:
    """What is called as ``owner.name`` when the owner itself holds ``own``, or nothing (``ABSENT``).

    What a class inherits is reached through ``super()`` at each call, as a method written into the class
    would do it: its parents, and other bases of its subclasses, stay in the chain.
    """
    raw = _looked_up(owner, name) if own is ABSENT else own
    method = isinstance(raw, (staticmethod, classmethod))
    if isinstance(raw, type) or not (callable(raw) or method):
        raise Foreign(f"{path(owner, name)} is {type(raw).__name__}, not a function")
    if not isinstance(owner, type):
        return Callee(raw, raw, None)
    # isinstance and not type(): a neighbour's wrapper (wrapt's) says of itself what it wraps.
    kind = next((kind for kind in (staticmethod, classmethod) if isinstance(raw, kind)), None)
    kind = classmethod if isinstance(raw, ClassMethodDescriptorType) else kind
    if own is ABSENT:
        return Callee(raw, _inherited(owner, name, raw, kind), kind)
    plain = raw.__func__ if type(raw) in (staticmethod, classmethod) else raw
    if type(plain) is FunctionType:
        return Callee(raw, plain, kind)
    if not hasattr(type(raw), "__get__") or isinstance(raw, functools.partial):
        # A partial (whose __get__ does nothing but warn, from Python 3.13 on), a builtin, a mock: it is
        # called without self, which no patch expects of a method.
        raise Foreign(f"{path(owner, name)} is {type(raw).__name__}, which does not bind as a method")
    return Callee(raw, _bound(owner, raw, kind), kind)


def _looked_up(owner: Any, name: str) -> Any:
    for cls in getattr(owner, "__mro__", ())[1:]:
        if name in vars(cls):
            return vars(cls)[name]
    return getattr(owner, name)


def _through(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs)


def _never(error: AttributeError, args: Any, kwargs: Any) -> None:
    return None


def _aside(link: Link) -> Callable[..., Any]:
    wrapper, patch = link.wrapper, str(link.key[0])

    # Not a partial, which dynamo does not know.
    def aside(error: AttributeError, args: Any, kwargs: Any) -> Callable[[], None] | None:
        return steps_aside(wrapper, patch, error, args, kwargs)

    return aside


def _show_parameters(function: FunctionType, original: Any) -> None:
    """Let ``inspect.getfullargspec``, which follows no ``__wrapped__``, say of both the same."""
    if type(original) is not FunctionType or hasattr(original, "__wrapped__"):
        return
    from vlmpatch.support.signature import signature

    function.__signature__ = signature(original)  # type: ignore[attr-defined]


def _bound(owner: type, raw: Any, kind: type | None) -> Callable[..., Any]:
    """A neighbour's descriptor, called as attribute access would call it."""

    def static(*args: Any, **kwargs: Any) -> Any:
        return raw.__get__(None, owner)(*args, **kwargs)

    def of_class(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return raw.__get__(None, cls)(*args, **kwargs)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return raw.__get__(self, type(self))(*args, **kwargs)

    call = static if kind is staticmethod else of_class if kind else method
    return _standing_for(raw, owner, kind, own_code(call))


def _inherited(owner: type, name: str, raw: Any, kind: type | None) -> Callable[..., Any]:
    def static(*args: Any, **kwargs: Any) -> Any:
        return getattr(super(owner, owner), name)(*args, **kwargs)

    def inherited(bound: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(owner, bound), name)(*args, **kwargs)

    plain = getattr(raw, "__func__", raw)
    return _standing_for(plain, owner, kind, own_code(static if kind is staticmethod else inherited))


def _standing_for(raw: Any, owner: type, kind: type | None, call: Callable[..., Any]) -> Callable[..., Any]:
    """``call`` under the name and with the signature of ``raw``."""
    if type(raw) is FunctionType:
        return functools.update_wrapper(call, raw)
    from vlmpatch.journal import signatures

    # What ``__wrapped__`` leads to may be no callable: who asks for a signature finds this one before it.
    found = signatures.of_descriptor(raw, owner, kind, call)
    functools.update_wrapper(call, raw)
    call.__signature__ = found  # type: ignore[attr-defined]
    return call


def _name(function: FunctionType, owner: Any, name: str, found: Callee) -> None:
    """Give our function on what pickles by name a name that leads to it, and any other the name it had."""
    raw = getattr(found.raw, "__func__", found.raw)
    function.__module__ = getattr(raw, "__module__", None)  # type: ignore[assignment]  # builtins have none
    own = own_name(raw)
    if own is None or found.kind is classmethod or (own.holder is owner and own.name == name):
        return
    if all(isinstance(each, ModuleType) for each in (own.holder, owner)) and is_of_the_package(own, owner):
        return  # it will lie there too
    if isinstance(owner, (type, ModuleType)):
        inside = isinstance(owner, type)
        function.__module__ = owner.__module__ if isinstance(owner, type) else owner.__name__
        function.__qualname__ = f"{owner.__qualname__}.{name}" if inside else name
