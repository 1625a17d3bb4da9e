"""A wrapper is in effect under torch.compile and export: on a function, a method, a module's forward."""

from __future__ import annotations

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
