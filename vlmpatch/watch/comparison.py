"""The first batch twice: with checkpointing off, and as the training itself runs it.

Where they differ the recompute is wrong, or the graph is cut. Nothing is compared where the extra forward
could not leave everything as it was (``untouched``), where memory is short, or where two forwards share a
backward. In float16 losses are scaled, so that gradients do not become zero, and so is that of the extra
forward. Where the training's own gradients of a batch have overflowed, or its scale was much smaller, the
next batch is compared, at its scale.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from vlmpatch.watch.findings import RECOMPUTED, SilentFailure, checkpointed, why_unreached
from vlmpatch.watch.precision import is_low, looking
from vlmpatch.watch.untouched import CannotUndo, untouched

TOLERANCE = {"float32": 1e-3, "float64": 1e-6}  # relative; other types:
LOW_PRECISION = 5e-2
MEMORY = 0.25  # of what is free, for two copies of the gradients
SCALES = (2.0**16, 2.0**10, 2.0**4, 1.0)  # of a loss in float16: the first by which no gradient overflows
SMALLER = 2.0**-4  # a scale by which more gradients become zero


class Comparison:
    """The two runs of the first batch, which see the same random numbers.

    The one with checkpointing off is made just before the training's own forward; its gradients are asked
    for by name, so that no engine's hook sees them.

    Args:
        model: what is trained, without an engine's wrapper around it.
        trained: its trainable parameters.
        remarks: where to say what was compared, or why it was not.
    """

    def __init__(self, model: Any, trained: Mapping[str, Any], remarks: list[str]) -> None:
        self.model = model
        self.trained = trained
        self.remarks = remarks
        self.busy = self.ready = self.over = False
        self.again = ""  # why the next batch is to be compared
        self.kinds: set[Any] = set()  # of numbers that the model computes in
        self.scales: tuple[float, ...] = ()  # of the loss to compare with, once they are known
        self.scale = 1.0  # the one that was taken
        self.own_scale = 0.0  # the training's, where its backward passes the loss that the model returned
        self.forwards = 0
        self.right: dict[str, Any] = {}
        self.mine: dict[str, Any] = {}
        self.losses: list[float] = []
        self._handles: list[Any] = []

    def hooks(self) -> list[Any]:
        """What sees the model called."""
        self._handles = [
            # First of all: hooks of others change the arguments (ms-swift runs the vision tower in one).
            self.model.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True),
            self.model.register_forward_hook(self._after),
        ]
        return self._handles

    def add(self, name: str, gradient: Any) -> None:
        """A part of the training's own gradient of the first micro-batch."""
        if self.right and not self.over:
            self.ready = True
            before = self.mine.get(name)
            # Always a copy: DDP and DeepSpeed put the gradient's memory to other uses.
            self.mine[name] = gradient.detach().clone() if before is None else before.add_(gradient.detach())

    def looks_again(self) -> bool:
        """Whether the next batch is to be compared in place of this one."""
        self.again = self._why_again()
        if self.again:
            self.ready, self.forwards = False, 0
            self._forget()
        return bool(self.again)

    @property
    def _half(self) -> bool:
        import torch

        return torch.float16 in self.kinds

    def _why_again(self) -> str:
        if not self._half:
            return ""
        finite = all(bool(gradient.isfinite().all()) for gradient in self.mine.values())
        if not finite and all(map(math.isfinite, self.losses)):
            return "the gradients overflowed"
        if len(self.scales) > 1 and 0 < self.own_scale < SMALLER * self.scale:
            self.scales = (self.own_scale,)
            return "the watch was over before the loss could be scaled as the training scales it"
        return ""

    def end(self) -> None:
        """Look no more, and forget."""
        if self.again and not self.over:
            self.remarks.append(f"not compared with checkpointing off: {self.again}")
        self.over, self.ready = True, False
        self._forget()
        for handle in self._handles:
            handle.remove()

    def _forget(self) -> None:
        self.right.clear()
        self.mine.clear()
        self.losses.clear()

    def _before(self, module: Any, args: Any, kwargs: Any) -> None:
        import torch

        if self.over or self.busy or not (module.training and torch.is_grad_enabled()):
            return
        self.forwards += 1
        if self.forwards > 1 and not self.ready:
            # Two forwards before one backward: their gradients come together.
            self._give_up("the model is called more than once before a backward")
        if self.right or self.over:
            return
        if reason := self._no_room():
            self._give_up(reason)
            return
        if any(_in_a_graph(value) for value in (*args, *kwargs.values())):
            # Its backward would free what the training's own needs.
            self._give_up("what the model is given was computed with a graph")
            return
        reason = ""
        try:
            self.busy = True
            with untouched(module, (args, kwargs)), _without_checkpointing(module):
                reason = self._run(module, args, kwargs)
        except CannotUndo as error:
            reason = str(error)
        except Exception as error:  # whatever it is, the training goes on
            reason = f"the step with checkpointing off failed: {type(error).__name__}: {error}"
        finally:
            self.busy = False
        if reason:
            self._give_up(reason)

    def _after(self, module: Any, args: Any, output: Any) -> None:
        if self.right and len(self.losses) == 1 and (loss := _loss(output)) is not None and not self.busy:
            self.losses.append(float(loss.detach()))
            if loss.grad_fn is not None:
                loss.grad_fn.register_prehook(functools.partial(self._begun, loss.output_nr))

    def _begun(self, place: int, gradients: Any) -> None:
        if gradients[place] is not None:
            self.own_scale = float(gradients[place])

    def _run(self, module: Any, args: Any, kwargs: Any) -> str:
        """Make the step; nothing, or why there is nothing to compare with."""
        import torch

        with looking(module) as seen:
            loss = _loss(module(*args, **kwargs))
        if loss is None:
            return "the model returns no loss"
        self.losses = [float(loss.detach())]
        self.kinds |= seen
        self.scales = self.scales or (SCALES if self._half else SCALES[-1:])
        for scale in self.scales:
            found = self._gradients(loss, torch.full_like(loss, scale), last=scale == self.scales[-1])
            if all(gradient.isfinite().all() for gradient in found.values()):
                break
        self.scale = scale
        self.right = {name: gradient for name, gradient in found.items() if gradient.any()}
        return "" if self.right else "no parameter has a gradient with checkpointing off"

    def _gradients(self, loss: Any, scale: Any, *, last: bool) -> dict[str, Any]:
        """Of ``loss`` times ``scale``."""
        import torch

        found = torch.autograd.grad(
            loss, [*self.trained.values()], scale, retain_graph=not last, allow_unused=True
        )
        return {name: g for name, g in zip(self.trained, found, strict=True) if g is not None}

    def _give_up(self, reason: str) -> None:
        self.end()
        self.remarks.append(f"not compared with checkpointing off: {reason}")

    def _no_room(self) -> str:
        if not checkpointed(self.model):
            return "it is off"
        needed = 2 * sum(p.numel() * p.element_size() for p in self.trained.values())
        return "" if needed <= MEMORY * _free(self.model) else "it would take too much memory"

    def compared(self) -> list[SilentFailure]:
        """What differs; gradients up to one common factor (accumulation, a scaled loss)."""
        found = []
        dtype = next(iter(self.right.values())).dtype
        tolerance = TOLERANCE.get(str(dtype).removeprefix("torch."), LOW_PRECISION)
        if any(map(is_low, self.kinds)):  # by autocast, of which gradients of float32 come
            tolerance = LOW_PRECISION
        off, on = self.losses[0], self.losses[-1]
        if not _close(off, on, tolerance):
            found.append(
                SilentFailure(f"the loss is {on:.6g}, with checkpointing off {off:.6g}", (), RECOMPUTED)
            )
        missing = tuple(name for name in self.right if name not in self.mine)
        if missing:
            what = (
                f"{len(missing)} trainable parameters have a gradient with checkpointing off and none with it"
            )
            found.append(SilentFailure(what, missing, why_unreached(self.model, missing)))
        both = [name for name in self.right if name in self.mine and self.right[name].isfinite().all()]
        scale = self._scale(both)
        whole = sum(float(self.right[name].float().norm()) ** 2 for name in both) ** 0.5
        wrong = tuple(
            name
            for name in both
            if not float((self.mine[name].float() - scale * self.right[name].float()).norm())
            <= tolerance * abs(scale) * max(float(self.right[name].float().norm()), 1e-3 * whole)
        )
        if wrong:
            what = f"the gradients of {len(wrong)} parameters are not those with checkpointing off"
            found.append(SilentFailure(what, wrong, RECOMPUTED))
        if not found:
            norm = abs(scale) * whole
            self.remarks.append(
                f"loss {self.losses[-1]:.6g} and gradient norm {norm:.4g} as with checkpointing off"
            )
        return found

    def _scale(self, names: list[str]) -> float:
        """The factor between the two, from the most frequent case: the median over the tensors."""
        ratios = []
        for name in names:
            right, mine = self.right[name].float(), self.mine[name].float()
            ratios.append(float((mine * right).sum() / right.square().sum()))
        numbers = [*filter(math.isfinite, ratios)]
        return statistics.median(numbers) if numbers else 1.0


def _close(one: float, other: float, tolerance: float) -> bool:
    if math.isnan(one) and math.isnan(other):
        return True
    return abs(one - other) <= tolerance * max(abs(one), abs(other))


def _loss(output: Any) -> Any:
    if isinstance(output, Mapping):
        return output.get("loss")
    return getattr(output, "loss", None)


def _in_a_graph(value: Any) -> bool:
    """Whether a backward from ``value`` goes on beyond it."""
    if isinstance(value, Mapping):
        return any(map(_in_a_graph, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_in_a_graph, value))
    return getattr(value, "grad_fn", None) is not None


@contextlib.contextmanager
def _without_checkpointing(model: Any) -> Iterator[None]:
    switched = checkpointed(model)
    for module in switched:
        module.gradient_checkpointing = False
    try:
        yield
    finally:
        for module in switched:
            module.gradient_checkpointing = True


def _free(model: Any) -> float:
    """Bytes that the model's device has to spare."""
    import torch

    device = next(model.parameters()).device
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return float(free)
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return 0.0
