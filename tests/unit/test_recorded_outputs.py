"""What is recorded inside of a reentrant checkpoint: which forms are known, what goes out of it, and when."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import sys
import types
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from vlmpatch import api

recorded: Any = importlib.import_module("vlmpatch.patches.transformers.reentrant_recorded_outputs")
checkpointed: Any = importlib.import_module("vlmpatch.patches._shared.checkpointed")
TORCH, GENERIC = "torch.utils.checkpoint", "transformers.utils.generic"
LISTS = """
_active_collector = 1
def install_output_capuring_hook(module, key, index):
    collected_outputs = _active_collector.get()
"""
WRAPPED = """
def check_model_inputs(func):
    collected_outputs, monkey_patched_layers = {}, []
    def make(module, orig_forward, key, index):
        def wrapped_forward(*args, **kwargs):
            pass
"""


def look(module: str, source: str) -> Any:
    return recorded.look(api.Code(module, "file.py", source))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (TORCH, f"def checkpoint():\n    {recorded.DOOR}\n"),
        (recorded.LISTS, LISTS),
        (recorded.LISTS, LISTS.replace("capuring", "capturing")),
        (GENERIC, WRAPPED),
    ],
)
def test_each_form_is_known(module: str, source: str) -> None:
    assert look(module, source) is None


@pytest.mark.parametrize("source", ["", "def check_model_inputs(func):\n    return func\n"])
def test_where_nothing_is_recorded_it_is_said(source: str) -> None:
    assert look(GENERIC, source) == "no outputs are recorded here"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (TORCH, ""),
        (recorded.LISTS, ""),
        (recorded.LISTS, LISTS.replace(".get()", "")),
        (GENERIC, WRAPPED.replace("wrapped_forward", "hook")),
        (GENERIC, WRAPPED.replace("index", "place")),
    ],
)
def test_another_form_is_none_that_is_known(module: str, source: str) -> None:
    with pytest.raises(api.Unrecognised, match="does not do it as it did"):
        look(module, source)


class Node:
    """Of a graph, with the hooks that wait for its gradients."""

    def __init__(self) -> None:
        self.hooks: list[Callable[[tuple[Any, ...]], None]] = []

    def register_prehook(self, hook: Callable[[tuple[Any, ...]], None]) -> None:
        self.hooks.append(hook)


class Tensor:
    def __init__(self, name: str, floating: bool = True, requires_grad: bool = False) -> None:
        self.name, self.floating, self.requires_grad = name, floating, requires_grad
        self.grad_fn: Node | None = None

    def is_floating_point(self) -> bool:
        return self.floating

    def is_complex(self) -> bool:
        return False

    def detach(self) -> Tensor:
        return Tensor(f"{self.name}'")


class Module:
    """Takes hooks, and calls them."""

    def __init__(self) -> None:
        self.hooks: list[Callable[..., Any]] = []
        self._modules: dict[str, Any] = {}

    def register_forward_hook(self, hook: Callable[..., Any], prepend: bool) -> Any:
        assert prepend
        self.hooks.append(hook)
        return types.SimpleNamespace(remove=lambda: self.hooks.remove(hook))

    def __call__(self, *args: Any) -> Any:
        output = self.forward(*args)
        for hook in self.hooks:
            hook(self, args, output)
        return output

    def forward(self, *args: Any, mask: Any = None) -> Any:
        return args


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = types.ModuleType("torch")
    made.Tensor, made.nn = Tensor, types.SimpleNamespace(Module=Module)
    made._C = types.SimpleNamespace(DisableTorchFunction=contextlib.nullcontext)
    made.is_grad_enabled = lambda: True
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What transformers' hooks append to."""
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("collector", default=None)
    monkeypatch.setitem(sys.modules, recorded.LISTS, types.SimpleNamespace(_active_collector=variable))
    return variable


def graph(*parts: Any) -> tuple[Any, ...]:
    """As torch's function returns them: with one node."""
    node = Node()
    for part in parts:
        if isinstance(part, Tensor):
            part.grad_fn = node
    return parts


class Checkpointed:
    """A block that appends to what records, behind the patch's door."""

    def __init__(self, active: Any, name: str = "router_logits", result: Any = None) -> None:
        self.active, self.name = active, name
        self.result = result or (Tensor("result"),)
        self.added: list[Any] = [Tensor("logits")]

    def __call__(self, *args: Any) -> Any:
        if (collector := self.active.get()) is not None:
            collector[self.name].extend(self.added)
        return self.result


def enter(torch: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """The door's wrapper, and with which function torch was called."""
    wrappers: list[Any] = []
    patch: Any = types.SimpleNamespace(wrap=lambda owner, name, wrapper: wrappers.append(wrapper))
    door: Any = types.SimpleNamespace(__name__=TORCH, CheckpointFunction=None)
    recorded.apply(patch, door)
    monkeypatch.setattr(recorded, "WAYS", {recorded.LISTS: recorded.in_lists})
    called: list[Any] = []

    def original(cls: Any, function: Any, preserve: Any, *args: Any, **kwargs: Any) -> Any:
        called.append((function, preserve, args, kwargs))
        result = function(*args)
        return graph(*result) if type(result) is tuple else graph(result)[0]

    return functools.partial(wrappers[0], original, None), called


def test_what_is_recorded_goes_out_and_takes_its_place(
    torch: Any, active: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    door, called = enter(torch, monkeypatch)
    block = Checkpointed(active)
    before = Tensor("before")
    active.set({"router_logits": [before]})
    result = door(block, True, Tensor("input"))
    assert result == block.result
    first, logits = active.get()["router_logits"]
    assert (first, logits.name) == (before, "logits'")
    assert logits.grad_fn is block.result[0].grad_fn
    active.set(None)
    (function, *_), node = called[0], block.result[0].grad_fn
    (see,) = node.hooks
    see((Tensor("gradient"), None))
    assert function(Tensor("input")) is block.result  # nobody wants it
    see((None, Tensor("gradient")))
    assert function(Tensor("input")) == (*block.result, *block.added)
    assert active.get() is None
    block.added = []
    assert function(Tensor("input")) == (*block.result, None)


@pytest.mark.parametrize("alone", [True, False])
def test_a_result_keeps_its_form(
    alone: bool, torch: Any, active: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    door, _ = enter(torch, monkeypatch)
    result: Any = Tensor("result") if alone else (Tensor("result"), None)
    active.set({"router_logits": []})
    assert door(Checkpointed(active, result=result), True, Tensor("input")) == result


@pytest.mark.parametrize("result", [[Tensor("result")], (Tensor("ids", floating=False), (Tensor("nested"),))])
def test_another_form_of_result_is_left_alone(
    result: Any, torch: Any, active: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    door, _ = enter(torch, monkeypatch)
    active.set({"router_logits": []})
    block = Checkpointed(active, result=result)
    assert door(block, True, Tensor("input")) == result
    assert active.get()["router_logits"] == block.added


def test_inputs_results_and_what_has_a_graph_stay(
    torch: Any, active: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    door, called = enter(torch, monkeypatch)
    given, bound = Tensor("input"), Tensor("bound")
    block = Checkpointed(active)
    stay = [given, bound, block.result[0], Tensor("ids", floating=False), Tensor("made", requires_grad=True)]
    block.added = [*stay, None]
    active.set({"router_logits": []})
    function = functools.partial(lambda *args, **said: block(*args), bound=bound)
    assert door(function, True, given) == block.result
    assert active.get()["router_logits"] == block.added
    assert called[0][0].keywords == {"bound": bound}


def test_without_a_graph_what_is_recorded_is_the_very_tensor(
    torch: Any, active: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "graph", lambda *parts: parts)
    door, _ = enter(torch, monkeypatch)
    active.set({"router_logits": []})
    block = Checkpointed(active)
    assert door(block, True, Tensor("input")) == block.result
    assert active.get()["router_logits"] == block.added


@pytest.mark.parametrize("records", [None, {}])
def test_where_nothing_records_the_very_call_is_handed_on(
    records: Any, torch: Any, active: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    door, called = enter(torch, monkeypatch)
    block, given = Checkpointed(contextvars.ContextVar("none", default=None)), Tensor("input")
    active.set(records)
    assert door(block, True, given, more=1) is not None
    assert called == [(block, True, (given,), {"more": 1})]


def test_without_gradients_the_very_call_is_handed_on(
    torch: Any, active: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.is_grad_enabled = lambda: False
    door, called = enter(torch, monkeypatch)
    active.set({"router_logits": []})
    block = Checkpointed(active)
    door(block, True)
    assert called[0][0] is block


def test_blocks_are_found_behind_many_functions_and_few_are_looked_into() -> None:
    module = Module()
    function: Any = module.forward
    for _ in range(12):
        function = (lambda inner: lambda: inner())(function)
    assert list(checkpointed.blocks_of(function)) == []
    assert list(checkpointed.all_blocks_of(function)) == [module]
    assert list(checkpointed.all_blocks_of(function, most=5)) == []


def test_other_patches_find_the_block(torch: Any) -> None:
    module = Module()
    segment = recorded.Segment([], contextlib.nullcontext)
    for function in (module, module.forward, functools.partial(module.forward, mask=None)):
        assert list(checkpointed.blocks_of(recorded.around(function, segment))) == [module]
    kept = recorded.around(functools.partial(module.forward, mask=3), segment)
    assert checkpointed.bound_to(kept, "mask") == 3


def test_lists_are_as_long_in_the_recomputation_and_go_when_it_ends(active: Any) -> None:
    chosen = {1, 2}
    live = {"hidden_states": [1, 2], "router_logits": [], "_hidden_states_layers": chosen}
    active.set(live)
    _, again = recorded.in_lists(None)
    with contextlib.suppress(ZeroDivisionError), again() as records:
        fresh = active.get()
        assert fresh == {"hidden_states": [None, None], "router_logits": [], "_hidden_states_layers": chosen}
        fresh["hidden_states"].append(3)
        assert [record.added() for record in records] == [[3], []]
        raise ZeroDivisionError
    assert active.get() is live


def wrapped(module: Any, collected_outputs: Any, key: str, index: int) -> None:
    """As transformers wraps a forward."""
    orig_forward = module.forward

    def wrapped_forward(*args: Any) -> Any:
        if key == "hidden_states" and len(collected_outputs[key]) == 0:
            collected_outputs[key] += (args[0],)
        output = orig_forward(*args)
        if not isinstance(output, tuple):
            collected_outputs[key] += (output,)
        elif output[index] is not None:
            collected_outputs[key] += (output[index],)
        return output

    module.forward = wrapped_forward


def forward_of_a_model(module: str, layers: str) -> Any:
    """What asks, called by a function like the one in which transformers wraps forwards."""
    source = f"def wrapper(ask, *args):\n    monkey_patched_layers = {layers}\n    return ask(*args)"
    names: dict[str, Any] = {"__name__": module}
    exec(source, names)
    return functools.partial(names["wrapper"], recorded.by_wrapped_forwards)


def in_a_forward(function: Any) -> Any:
    return forward_of_a_model(GENERIC, "[1]")(function)


@pytest.mark.parametrize(("module", "layers"), [(GENERIC, "[]"), ("other", "[1]")])
def test_where_no_forward_records_no_module_is_looked_at(
    module: str, layers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "all_blocks_of", lambda function: pytest.fail("looked at"))
    assert forward_of_a_model(module, layers)(Module()) is None
    assert recorded.by_wrapped_forwards(Module()) is None


def test_a_compiler_keeps_the_list_elsewhere() -> None:
    module = Module()
    wrapped(module, defaultdict(tuple), "router_logits", 0)
    assert forward_of_a_model(GENERIC, "[1]; del monkey_patched_layers")(module) is not None


def test_wrapped_forwards_are_recorded_again_in_their_order() -> None:
    outer, inner = Module(), Module()
    outer._modules = {"inner": inner, "none": None}
    text: Any = defaultdict(tuple)
    whole: Any = defaultdict(tuple)
    before = [vars(module).get("forward") for module in (outer, inner)]
    wrapped(outer, text, "hidden_states", 0)
    wrapped(inner, text, "router_logits", 1)
    wrapped(inner, whole, "router_logits", 1)
    records, again = in_a_forward(functools.partial(outer, 1))

    def run() -> None:
        inner(Tensor("a"), Tensor("b"))
        outer(Tensor("c"))
        inner(Tensor("d"), None)

    def names(records: Any) -> list[list[str]]:
        return sorted([value.name for value in record.added()] for record in records)

    run()
    assert names(records) == [["b"], ["b"], ["c", "c"]]
    kept = (dict(text), dict(whole))
    for module, forward in zip((outer, inner), before, strict=True):
        assert forward is None
        del module.forward
    with again() as recorded_again:
        run()
    assert names(recorded_again) == [["b"], ["b"], ["c", "c"]]
    assert (dict(text), dict(whole)) == kept
    assert outer.hooks == inner.hooks == []
    assert in_a_forward(outer) is None


def test_a_segment_in_the_recomputation_of_another_records_to_it() -> None:
    module = Module()
    collected: Any = defaultdict(tuple)
    wrapped(module, collected, "router_logits", 1)
    _, again = in_a_forward(module)
    del module.forward
    with again() as outer:
        records, within = recorded.by_wrapped_forwards(module)
        module(1, Tensor("first"))
        (added,) = (record.added() for record in records)
        records[0].put({id(added[0]): "put"})
    assert [record.added() for record in outer] == [["put"]]
    with within() as inner:
        module(1, Tensor("again"))
    assert [[value.name for value in record.added()] for record in inner] == [["again"]]


@pytest.mark.parametrize("kind", [list, tuple])
def test_other_tensors_take_a_place_in_what_was_added(kind: type) -> None:
    old, new = object(), object()
    holder = {"attentions": kind([old, 1, old, 2])}
    recorded.Record(holder, "attentions", 1).put({id(old): new})
    assert holder == {"attentions": kind([old, 1, new, 2])}


def test_a_record_of_which_nothing_came_stays_away() -> None:
    holder: dict[str, Any] = {}
    recorded.Record(holder, "attentions", 0).put({})
    assert holder == {}
