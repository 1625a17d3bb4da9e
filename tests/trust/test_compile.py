"""Under torch.compile and export a wrapper is in effect, and begins no graph that the original would not."""

from __future__ import annotations

import pytest

from tests.lab import envs, launch

PROGRAM = """
import types
import torch
from vlmpatch.journal.journal import Journal

target = types.ModuleType("target")
target.function = lambda x: x + 1

class Model(torch.nn.Module):
    def helped(self, x):
        return x * 2
    def forward(self, x):
        return target.function(self.helped(x))

class Below(Model):
    pass

def plus(amount):
    return lambda original, *args, **kwargs: original(*args, **kwargs) + amount

def both(model):
    torch._dynamo.reset()
    x = torch.ones(2)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    exported = torch.export.export(model, (x,), strict=True).module()
    seen = {float(call(x)[0]) for call in (model, compiled, exported)}
    assert len(seen) == 1, seen
    return seen.pop()

journal = Journal()
print(both(Model()))
journal.wrap("p", target, "function", plus(10))
print(both(Model()))
journal.wrap("q", target, "function", plus(100))
journal.wrap("q", Model, "helped", plus(1000))
journal.wrap("p", Model, "forward", plus(10000))
journal.wrap("p", Below, "forward", plus(20000))
print(both(Model()), both(Below()))
compiled = torch.compile(Model(), fullgraph=True, backend="eager")
print(float(compiled(torch.ones(2))[0]))
journal.suspend("p")
print(float(compiled(torch.ones(2))[0]))
journal.resume("p")
print(float(compiled(torch.ones(2))[0]))
journal.rollback(["p"])
print(float(compiled(torch.ones(2))[0]), both(Below()))
journal.rollback(["q"])
print(float(compiled(torch.ones(2))[0]))

def doubled(module, args, kwargs):
    return tuple(2 * arg for arg in args), kwargs

import pickle
model = Model()
journal.hook("p", model.register_forward_pre_hook, doubled, with_kwargs=True)
print(float(torch.compile(model, fullgraph=True, backend="eager")(torch.ones(2))[0]))
assert b"vlmpatch" not in pickle.dumps(model)
print(float(pickle.loads(pickle.dumps(model))(torch.ones(2))[0]))
"""
EXPECTED = [
    "3.0",
    "13.0",
    "11113.0 31113.0",
    "11113.0",
    "1103.0",
    "11113.0",
    "1103.0 1103.0",
    "3.0",
    "5.0",
    "3.0",
]


def test_layers_are_traced() -> None:
    stack = envs.read_stacks()["tf457-ds0182"]
    envs.make(stack)
    done = launch.run(stack, ["python", "-W", "ignore", "-c", PROGRAM], limit=180)
    assert done.rc == 0, str(done)
    assert [line for line in done.output.splitlines() if line[:1].isdigit()] == EXPECTED


# What torch leaves alone: a function of its own that is called where a trace has broken off.
BEGINS = """
import sys
import torch
from torch.utils.data._utils import collate
from vlmpatch.engine.engine import make

def step(x):
    torch._dynamo.graph_break()
    return collate.default_collate([x, x]) + 1

def graphs():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    value = float(torch.compile(step, backend=counter)(torch.ones(2))[0][0])
    return value, counter.frame_count, counter.op_count

def plus(amount):
    return lambda original, /, *args, **kwargs: original(*args, **kwargs) + amount

early = "torch._dynamo" in sys.modules
engine = make({})
engine.arm()
engine.journal.wrap("p", collate, "default_collate", plus(10))
engine.journal.wrap("q", collate, "default_collate", plus(100))
print("early" if early else "late")
import torch._dynamo.testing
engine.hooks.sweep()
print(*graphs())
engine.journal.rollback(["p", "q"])
print(*graphs())
"""


@pytest.mark.parametrize("imported", ["early", "late"])
def test_nothing_of_ours_begins_a_graph_that_torch_would_not(imported: str) -> None:
    stack = envs.read_stacks()["tf457-ds0182"]
    envs.make(stack)
    first = "import torch._dynamo" if imported == "early" else ""
    done = launch.run(stack, ["python", "-W", "ignore", "-c", first + BEGINS], limit=180)
    assert done.rc == 0, str(done)
    when, patched, bare = (
        line for line in done.output.splitlines() if line[:1].isdigit() or line in ("early", "late")
    )
    assert when == imported
    assert patched.split()[0] == "112.0"
    assert bare.split()[0] == "2.0"
    assert patched.split()[1:] == bare.split()[1:]


# A method wrapped where it is inherited from, of objects that are made while a trace runs.
INHERITED = """
import torch
from vlmpatch.journal.journal import Journal

class Base:
    def helped(self, x):
        return x + 1

class Heir(Base):
    pass

class Below(Heir):
    pass

def step(x):
    return Base().helped(x), Heir().helped(x), Below().helped(x)

def more(original, self, /, *args, **kwargs):
    return original(self, *args, **kwargs) + 10

Journal().wrap("p", Heir, "helped", more)
compiled = torch.compile(step, fullgraph=True, backend="eager")
print(*(float(each[0]) for each in compiled(torch.ones(2))))
"""


def test_an_inherited_method_is_traced_for_its_heirs() -> None:
    stack = envs.read_stacks()["tf457-ds0182"]
    envs.make(stack)
    done = launch.run(stack, ["python", "-W", "ignore", "-c", INHERITED], limit=180)
    assert done.rc == 0, str(done)
    assert "2.0 12.0 12.0" in done.output.splitlines()
