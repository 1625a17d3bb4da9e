"""ZeRO-1 and ZeRO-2 reduced what each rank happened to have, in the order in which it came.

What the user sees: a rank whose batch has no image beside one with: gloo says that sizes do not match
(``2816 vs 1792``), NCCL's watchdog reports an ALLREDUCE with different element counts, or it hangs.
Where the sizes agree by chance (the tower was called before the text embedding on one rank and after it
on the other) nothing is seen, and different parameters are summed: gradients off by a factor of 4 to
1,000. With ``offload_optimizer`` a parameter without a gradient in a step was updated with that of an
earlier step, and one without a gradient in a window's last micro-batch lost what it had.

Why: buckets are filled by hooks, with the gradients that arrive and as they arrive. DeepSpeed fills in
zeros for missing gradients only outside ZeRO.

What is done: every rank reduces all parameters in one order. A gradient that comes before its turn
waits where it is; what has not come by the end of the backward is reduced as a zero, as DDP does. The
order is the one in which gradients arrived in the first backward on the rank where most did; ranks
agree on it then, by two small collectives. Where gradients arrive in that order in every
step nothing waits, and nothing more is communicated. A second gradient of the same parameter after
its turn is what it was: DeepSpeed's error (F1). A gradient that is gone at its turn is an error that says
so: two ZeRO-2 engines with one tower between them end without this patch too.

A parameter that no rank used has a zero for a gradient, since a flat partition holds nothing else, but one
with a sign by which ``zero-step-without-gradient`` knows it and passes over it.

Left alone: ZenFlow; a ``loss.backward()`` that reaches no parameter on a rank, which since 0.18.3 ends in
DeepSpeed's error.

Every release from 0.14.4 to 0.19.8. Upstream: https://github.com/deepspeedai/DeepSpeed/issues/7044
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised, assign

from .._shared.missing_gradients import none_made, taken, unreached
from .._shared.reduction_order import ReductionOrder, backward_order, orders

OPTIMIZER = "DeepSpeedZeroOptimizer"
REDUCE = "reduce_independent_p_g_buckets_and_remove_grads"
EPILOGUE = "independent_gradient_partition_epilogue"
# What the two say in every release: a gradient goes into the bucket as it comes, and what is in the
# bucket is reduced at the end.
SAYS = {
    REDUCE: ("self.params_already_reduced", "self.reduce_ipg_grads("),
    EPILOGUE: ("self.reduce_ipg_grads()",),
}
TAKEN = (
    "vlmpatch [zero-uneven-gradients]: a gradient was taken away before ZeRO had reduced it: by another "
    "engine that has the same parameter, or by a hook of the script's. Give a parameter to one engine, and "
    "leave param.grad to it"
)
ATTEMPTS = 4  # backwards after which an order that lacks some parameters is kept


def look(code: Code) -> str | None:
    """Buckets must be filled and emptied by the two functions as they are known."""
    for name, pieces in SAYS.items():
        function = code.function(f"{OPTIMIZER}.{name}")
        if function is None or not all(piece in function for piece in pieces):
            raise Unrecognised(f"{OPTIMIZER}.{name} in {code.path} is not as any known release has it")
        if "zeros_like" in function:
            return f"{name} fills in zeros itself"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Let every rank reduce everything in one order."""
    optimizer = module.DeepSpeedZeroOptimizer

    def order_of(self: Any) -> ReductionOrder:
        order = orders.get(self)
        if order is None:
            order = orders[self] = _order(self)
        return order

    def reduce(original: Callable[..., Any], self: Any, /, param: Any, i: int) -> None:
        order = orders.get(self) or order_of(self)
        # Not ready: it is still being added to, by several backwards within one forward.
        ready = getattr(param, "ds_grad_is_ready", True)
        if order.draining or (ready and order.takes_turn(param)) or _left_alone(self) or order.passed(param):
            original(self, param, i)
            return
        if not ready:
            return
        stream = module.get_accelerator().current_stream()
        order.arrive(param, stream)
        for waited, group, computed_on in order.ready():
            if self.get_gradient_for_reduction(waited) is None:
                raise AssertionError(TAKEN)
            if waited is not param and computed_on != stream:
                stream.wait_stream(computed_on)
            original(self, waited, group)

    def epilogue(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if _left_alone(self):
            return original(self, *args, **kwargs)
        order: ReductionOrder = order_of(self)
        if _is_no_backward(self, order):
            return original(self, *args, **kwargs)
        order.draining = True
        missing = unreached[self] = taken()
        try:
            for param, group in order.rest():
                if self.get_gradient_for_reduction(param) is None:
                    missing.add(id(param))
                    _prepare_buckets(self)
                    _fill(self, param)
                getattr(self, REDUCE)(param, group)
        finally:
            order.draining = False
        result = original(self, *args, **kwargs)
        if order.heard is not None:
            _agree(self, order, module)
        order.begin()
        return result

    patch.wrap(optimizer, REDUCE, reduce)
    patch.wrap(optimizer, EPILOGUE, epilogue)


def _left_alone(optimizer: Any) -> bool:
    return bool(getattr(optimizer, "zenflow", False))


def _is_no_backward(optimizer: Any, order: ReductionOrder) -> bool:
    """Whether autograd went through an engine and reached none of its parameters, as ``autograd.grad`` does.

    Since 0.18.3 a hook on what the engine returned begins and ends a backward then as well: zeros in that
    would take the place of the gradients that a step is to have.
    """
    import torch

    inside = getattr(torch._C, "_current_graph_task_id", lambda: -1)() != -1
    if not inside or order.due or order.waiting:
        return False
    return all(optimizer.get_gradient_for_reduction(param) is None for param, _ in order.members)


def _order(optimizer: Any) -> ReductionOrder:
    if optimizer.partition_gradients or optimizer.overlap_comm:
        return ReductionOrder(backward_order(optimizer.bit16_groups, optimizer.param_names))
    # ZeRO-1 goes through its groups after the backward: in that order nothing waits.
    order = ReductionOrder([(param, i) for i, group in enumerate(optimizer.bit16_groups) for param in group])
    order.heard = None
    return order


def _prepare_buckets(optimizer: Any) -> None:
    """Allocate the buckets where no hook has: a rank without any gradient."""
    if not optimizer.contiguous_gradients:
        return
    buckets = getattr(optimizer, "ipg_buckets", None)  # one buffer until 0.17.1, then one a dtype
    buffers = [optimizer.ipg_buffer] if buckets is None else [bucket.buffer for bucket in buckets.values()]
    if not any(buffers):
        # One function under two names; later releases have another under the second.
        (getattr(optimizer, "setup_buckets", None) or optimizer.backward_prologue)()


def _fill(optimizer: Any, param: Any) -> None:
    if getattr(optimizer, "use_grad_accum_attribute", False):
        assign(param, "grad_accum", none_made(param, dtype=optimizer.gradient_accumulation_dtype))
    else:
        assign(param, "grad", none_made(param))


def _agree(optimizer: Any, order: ReductionOrder, module: ModuleType) -> None:
    """Take the order of the rank on which most gradients arrived."""
    dist, torch = module.dist, module.torch
    group = optimizer.dp_process_group
    device = module.get_accelerator().current_device_name()
    world, rank = dist.get_world_size(group=group), dist.get_rank(group=group)
    heard = order.heard or []
    most = torch.tensor([len(heard) * world + world - 1 - rank], dtype=torch.int64, device=device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    arrived, chosen = divmod(int(most.item()), world)
    places = torch.zeros(len(order.members), dtype=torch.int64, device=device)
    if rank == world - 1 - chosen:
        places[: len(heard)] = torch.tensor(heard, dtype=torch.int64, device=device) + 1
    dist.all_reduce(places, op=dist.ReduceOp.MAX, group=group)
    order.reorder(place - 1 for place in places.tolist() if place)
    order.attempts += 1
    if arrived == len(order.members) or order.attempts == ATTEMPTS:
        order.heard = None
