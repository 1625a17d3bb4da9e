"""A frozen vision tower keeps its activations where transformers 4 kept none.

What the user sees: more memory than transformers 4 needed, most of all where the tower's own checkpointing
is switched off because it is frozen: 98 GiB in place of 68 in one thread. Under ZeRO-3 a step gathers the
tower's parameters for its backward too.

Why: ``enable_input_require_grads()``, which checkpointing calls, hooks the input embeddings of every model
inside a model, a tower's patch embedding among them. What it hands on then requires grad, so that all of a
frozen tower is in the graph, for a backward whose gradients nobody uses. Before, it hooked the text
embeddings alone.

Since transformers 5.0.0.

The change: where all checkpointed layers are so with ``use_reentrant=False``, a tower of transformers' own
that is frozen runs without a graph, and what comes out of it requires grad as if it had one. Only reentrant
checkpointing needs an input that requires grad. Whether it is frozen is asked in every forward.

It is as upstream has it where a gradient from inside may be wanted: a part of the tower has a hook or a
``forward`` that is neither torch's nor a framework's (Grad-CAM, ``retain_grad``), attention maps are asked
for, the embeddings are called by themselves, a part is trained. So are the text embeddings, what is being
compiled, and everything where no layer is checkpointed or one is with another function.

Upstream: https://github.com/huggingface/transformers/pull/41993 (every model's embeddings),
https://github.com/modelscope/ms-swift/pull/9945
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from vlmpatch.api import Code, Patch, answers_while_traced

from .._shared.compiling import compiling

ENABLE = "enable_input_require_grads"
ASKED = "get_input_embeddings"
REGISTERED = "_require_grads_hooks"  # of a model that has enabled it, until it disables it
UPSTREAM = "transformers.models."  # code of a model's own may call checkpoint() in its own way
OBEYS = ("torch", "transformers", "vlmpatch")  # ms-swift's function of that name does what it likes
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
# Their hooks gather weights and collect outputs; none asks for a gradient from inside a frozen tower.
FRAMEWORKS = {"torch", "transformers", "accelerate", "deepspeed", "peft", __name__.partition(".")[0]}

_towers: WeakSet[Any] = WeakSet()
_enabled: WeakKeyDictionary[Any, WeakSet[Any]] = (
    WeakKeyDictionary()
)  # by embeddings of towers: for which models
_hooks: WeakKeyDictionary[Any, Callable[..., None]] = WeakKeyDictionary()  # by embeddings of towers
_running = threading.local()


def look(code: Code) -> str | None:
    """The models inside a model must be hooked too."""
    function = code.function(f"PreTrainedModel.{ENABLE}")
    if function is None or "self.modules()" not in function or f"module.{ASKED}()" not in function:
        return "the model's own input embeddings alone are made to require grad"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Leave towers out where nothing needs the gradient of their input."""
    tracing = compiling()

    def forward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if tracing():
            return original(self, *args, **kwargs)
        return without_graph(original, self, *args, **kwargs)

    def enable(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        inner = towers(self, module.PreTrainedModel) if non_reentrant(self) else []
        with contextlib.ExitStack() as meanwhile:
            for tower in inner:
                meanwhile.enter_context(patch.swapped(tower, ASKED, none))
            result = original(self, *args, **kwargs)
        for tower in inner:
            _leave_out(patch, self, tower, forward)
        return result

    patch.wrap(module.PreTrainedModel, ENABLE, enable)


def none() -> None:
    """What a model without input embeddings answers."""


def _leave_out(patch: Patch, model: Any, tower: Any, forward: Callable[..., Any]) -> None:
    """Ask of every forward of ``tower`` whether it needs a graph."""
    embeddings = _embeddings(tower)
    if not hasattr(embeddings, "register_forward_hook"):
        return
    _towers.add(tower)
    _enabled.setdefault(embeddings, WeakSet()).add(model)
    if embeddings not in _hooks:
        _hooks[embeddings] = requiring_grad(embeddings)
    patch.hook(embeddings.register_forward_hook, _hooks[embeddings])
    patch.wrap(type(tower), "forward", forward)


def requiring_grad(embeddings: Any) -> Callable[..., None]:
    """A hook for ``embeddings`` as upstream's, but in a tower that runs without a graph."""
    known, tracing = ref(embeddings), compiling()

    def of_the_traced() -> bool:
        return _enabled_for(known())

    answers_while_traced(of_the_traced)

    def require_grad(embeddings: Any, inputs: Any, output: Any) -> None:
        if tracing():
            if of_the_traced():
                output.requires_grad_(True)
        elif not _enabled_for(embeddings):
            return
        elif getattr(_running, "tower", None) is not None:
            _running.left_out = True
        else:
            output.requires_grad_(True)

    return require_grad


def _enabled_for(embeddings: Any) -> bool:
    """Whether a model has them require grad still; yes where none is known, as in a copy."""
    models = None if embeddings is None else _enabled.get(embeddings)
    return models is None or any(getattr(model, REGISTERED, None) for model in models)


def without_graph(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Around the forward of a tower."""
    if self not in _towers or getattr(_running, "tower", None) is not None or _needs_graph(self, kwargs):
        return original(self, *args, **kwargs)
    _running.tower, _running.left_out = self, False
    try:
        result = original(self, *args, **kwargs)
    finally:
        _running.tower = None
    if _running.left_out:
        _require_grad_of(result, {id(t) for t in _not_made_by(self, (args, kwargs))})
    return result


def _needs_graph(tower: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a gradient from inside may be wanted, or no graph is made as usual."""
    torch = sys.modules["torch"]
    if not torch.is_grad_enabled() or torch.jit.is_tracing():
        return True
    maps = kwargs.get("output_attentions")
    if getattr(tower.config, "output_attentions", False) if maps is None else maps:
        return True
    return any(p.requires_grad for p in tower.parameters()) or looked_into(tower)


def looked_into(tower: Any) -> bool:
    """Whether a part of ``tower`` has a hook, or a forward, that neither torch nor a framework gave it."""
    everywhere = vars(sys.modules["torch.nn.modules.module"])
    functions = [function for name in GLOBAL_HOOKS for function in everywhere.get(name, {}).values()]
    for part in tower.modules():
        if part is not tower:
            own = vars(part)
            functions += (function for name in HOOKS for function in own.get(name, {}).values())
            functions += (own[name] for name in ("forward",) if name in own)
    return any(_package(function) not in FRAMEWORKS for function in functions)


def _package(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__module__", "")).partition(".")[0]


def _not_made_by(tower: Any, given: Any) -> Iterator[Any]:
    """What a forward has not made: its weights, and what it was given."""
    yield from tower.parameters()
    yield from tower.buffers()
    for tensor in _tensors(given):
        yield tensor
        yield tensor._base


def _require_grad_of(result: Any, known: set[int]) -> None:
    """Let the tensors of ``result`` require grad; they stay the same objects, and may be written into.

    Args:
        result: of a forward.
        known: the ids of tensors that the forward has not made.
    """
    made = [t for t in _tensors(result) if t.is_floating_point() and not t.is_inference()]
    if any(t.requires_grad for t in made):  # by an input that requires grad
        return
    torch = sys.modules["torch"]
    for tensor in made:
        root = tensor._base if tensor._is_view() else tensor
        if not tensor.requires_grad and id(root) not in known:
            _end_of_graph().apply(torch.empty(0, requires_grad=True), tensor)


@functools.cache
def _end_of_graph() -> Any:
    import torch

    class EndOfGraph(torch.autograd.Function):  # type: ignore[misc]
        """Where a gradient arrives, and is not passed on."""

        @staticmethod
        def forward(ctx: Any, anchor: Any, tensor: Any) -> Any:
            ctx.mark_dirty(tensor)
            return tensor

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> tuple[None, None]:
            return None, None

    return EndOfGraph


def _tensors(values: Any) -> Iterator[Any]:
    if isinstance(values, sys.modules["torch"].Tensor):
        yield values
    elif isinstance(values, (tuple, list, dict)):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _tensors(value)


def towers(model: Any, pretrained: type) -> list[Any]:
    """The models of transformers inside ``model`` whose input embeddings are not its own."""
    own = _embeddings(model)
    inner = [each for each in model.modules() if isinstance(each, pretrained) and each is not model]
    return [
        each
        for each in inner
        if own is not None
        and str(type(each).__module__).startswith(UPSTREAM)
        and _embeddings(each) is not own
    ]


def _embeddings(model: Any) -> Any:
    try:
        return model.get_input_embeddings()
    except NotImplementedError:
        return None


def non_reentrant(model: Any) -> bool:
    """Whether layers of ``model`` are checkpointed, and each of them with ``use_reentrant=False``."""
    functions = [
        vars(module).get("_gradient_checkpointing_func")
        for module in model.modules()
        if vars(module).get("gradient_checkpointing") is True
    ]
    return bool(functions) and all(map(_says_non_reentrant, functions))


def _says_non_reentrant(function: Any) -> bool:
    """Whether it is ``partial(checkpoint, use_reentrant=False)``, of a ``checkpoint`` that obeys."""
    if not isinstance(function, functools.partial) or function.keywords.get("use_reentrant") is not False:
        return False
    package: str = getattr(function.func, "__globals__", {}).get("__name__", "")
    return package.partition(".")[0] in OBEYS
