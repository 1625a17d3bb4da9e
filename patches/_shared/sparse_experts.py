"""Blocks whose tokens go to some of their experts only, recognised by structure."""

from __future__ import annotations

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

_ROUTERS = ("gate", "router", "shared_expert_gate")
_WITHOUT_GRAD = ("no_grad", "inference_mode")


def sparse_blocks(model: Any) -> Iterator[Any]:
    """Modules of ``model`` that hold a router and a list of experts, a module an expert.

    From transformers 5 on experts are one parameter for all of them: nothing there is ever unused.
    """
    import torch

    for module in model.modules():
        children = module._modules
        if any(name in _ROUTERS and child is not None for name, child in children.items()):
            lists = (c for n, c in children.items() if "expert" in n and isinstance(c, torch.nn.ModuleList))
            if any(_alike(experts) for experts in lists):
                yield module


def stacked_experts(model: Any) -> Iterator[Any]:
    """Modules that hold one parameter for all their experts, and parts without any, such as an activation."""
    for module in model.modules():
        stacked = any(p is not None and dimensions(p) > 2 for p in module._parameters.values())
        if stacked and any(idle_parts(module)):
            yield module


def dimensions(parameter: Any) -> int:
    """Of the whole parameter: what ZeRO-3 partitioned as it loaded the model has one itself."""
    return len(getattr(parameter, "ds_shape", parameter.shape))


def idle_parts(module: Any) -> Iterator[Any]:
    """The children of ``module`` that have no parameters."""
    return (part for part in module.children() if next(part.parameters(), None) is None)


def _alike(experts: Any) -> bool:
    """DeepSeek leaves ``None`` where an expert lives on another rank."""
    own = [expert for expert in experts if expert is not None]
    return (
        len(own) > 1 and len({type(expert) for expert in own}) == 1 and any(True for _ in own[0].parameters())
    )


def are_networks(block: Any) -> bool:
    """Whether the experts of a sparse block have layers: together they may be all of a model."""
    import torch

    lists = [child for child in block.children() if isinstance(child, torch.nn.ModuleList)]
    return any(isinstance(p, torch.nn.ModuleList) for each in lists for e in each for p in e.modules())


def skipping(blocks: Iterable[Any]) -> Iterator[Any]:
    """Those of ``blocks`` whose code may pass over an expert; each class is read once."""
    skips: dict[type, bool] = {}
    for block in blocks:
        kind = type(block)
        if kind not in skips:
            skips[kind] = skips_experts(block)
        if skips[kind]:
            yield block


def skips_experts(block: Any) -> bool:
    """Whether the code of a sparse block may call some experts and pass over others.

    It does where it asks which of them were hit, or decides something inside its loop over them. One that
    calls each, if with no token, does not; nor does what runs in evaluation only.
    """
    return any(map(_skips, _methods(type(block))))


def _methods(cls: type) -> Iterator[ast.FunctionDef]:
    """What ``cls`` says about itself, as far as its source can be read."""
    own = (base for base in cls.__mro__ if not str(base.__module__).startswith(("torch.", "builtins")))
    names = {name: value for base in reversed([*own]) for name, value in vars(base).items()}
    for value in names.values():
        if inspect.isfunction(value) and value.__name__ != "__init__":
            with contextlib.suppress(OSError, TypeError, SyntaxError):
                tree = ast.parse(textwrap.dedent(inspect.getsource(value)))
                yield from (node for node in tree.body if isinstance(node, ast.FunctionDef))


def _skips(method: ast.FunctionDef) -> bool:
    if any(name in ast.unparse(deco) for deco in method.decorator_list for name in _WITHOUT_GRAD):
        return False
    loops = [node for node in ast.walk(method) if isinstance(node, ast.For) and _sees_experts(node)]
    return any(_decides(loop) or "nonzero" in ast.unparse(method) for loop in loops)


def _sees_experts(loop: ast.For) -> bool:
    named = (getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(loop))
    return any("expert" in name for name in named)


def _decides(loop: ast.For) -> bool:
    return any(isinstance(node, ast.If) for statement in loop.body for node in ast.walk(statement))
