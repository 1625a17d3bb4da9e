"""FSDP2 with gradients that are summed in another dtype ends at texts alone, and at a text before an image.

What the user sees: a training under FSDP2 that accumulates gradients, with a policy such as
``MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)``. A micro-batch of texts, in
which a vision or audio tower does not run, frozen or not, ends in `AttributeError: 'FSDPParam' object has no
attribute '_unsharded_param'`. Where the tower has run before, a window with a text before an image ends in
`FSDP reduce-scatter expects uniform gradient dtype but got {torch.float32, torch.bfloat16}`.

Why: a backward that does not reduce (``set_requires_gradient_sync(False)``, accelerate's ``no_sync``) brings
each gradient to the dtype of the sum. It looks for it on a parameter that is made when a unit is gathered
for the first time; a unit that did not run yet has none. And where a part of a unit did not run until the
backward that reduces (what is around the tower's blocks, beside the embeddings), that part's gradient is of
the computation's dtype still, beside sums of the other's.

Since torch 2.4, which brought ``fully_shard``; this acts from 2.6 on, and was run on 2.10 and 2.13. 2.15
keeps its dtypes in another way.

The change: a unit that was never gathered has no gradient to bring anywhere. Where gradients of a unit have
several dtypes they are all brought to that of the sum, as the reduction itself does with each.

Upstream: https://github.com/pytorch/pytorch/pull/194058 (the first of the two)
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch

PARAM, BRINGS = "FSDPParam", "to_accumulated_grad_if_needed"
GATHERED = "_unsharded_param"  # what it has once it was gathered
ASKED, KNOWN = f"self.{GATHERED}.grad is None", f'self, "{GATHERED}"'
GROUP, REDUCES = "FSDPParamGroup", "foreach_reduce"
SUMS, OTHERS = "unsharded_accumulated_grad_data", "unsharded_grad_data"  # what a unit reduces, side by side
PARAMS, GRADS = Argument(0, "fsdp_params"), Argument(1, "unsharded_grads")


def look(code: Code) -> str | None:
    """It must ask for gradients that it does not know to be there, and reduce them beside sums."""
    if code.module.endswith("_group"):
        ends = code.function(f"{GROUP}.post_backward")
        mixes = ends is not None and all(text in ends for text in (SUMS, OTHERS, REDUCES))
        return None if mixes else "no gradients are reduced beside sums of another dtype"
    brings = code.function(f"{PARAM}.{BRINGS}")
    asks = brings is not None and ASKED in brings and KNOWN not in brings
    return None if asks else "a unit that was never gathered is not asked for its gradient"


def apply(patch: Patch, module: ModuleType) -> None:
    """Ask those that were gathered, and reduce in one dtype."""

    def bring(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs) if hasattr(self, GATHERED) else None

    def reduce(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        grads = GRADS.of(args, kwargs)
        if len({grad.dtype for grad in grads}) > 1:
            for number, param in enumerate(PARAMS.of(args, kwargs)):
                grads[number] = grads[number].to(param.reduce_dtype or grads[number].dtype)
        return original(*args, **kwargs)

    if module.__name__.endswith("_group"):
        patch.wrap(module, REDUCES, reduce)
    else:
        patch.wrap(getattr(module, PARAM), BRINGS, bring)
