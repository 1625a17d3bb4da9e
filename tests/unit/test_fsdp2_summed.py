"""What FSDP2 asks of a unit that has not run, and what it reduces beside sums of another dtype."""

from __future__ import annotations

import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.api import Patch
from vlmpatch.journal.journal import Journal

PATCH: Any = importlib.import_module("vlmpatch.patches.torch.fsdp2_summed_in_another_dtype")
HOME = "torch.distributed.fsdp._fully_shard."
ASKS = """
class FSDPParam:
    def to_accumulated_grad_if_needed(self):
        if {known}self._unsharded_param.grad is None:
            return
"""
REDUCES = """
class FSDPParamGroup:
    def post_backward(self):
        grads = [self.unsharded_accumulated_grad_data, self.{other}]
        foreach_reduce(grads)
"""


def said(module: str, source: str) -> str | None:
    reason: str | None = PATCH.look(api.Code(HOME + module, f"{module}.py", source))
    return reason


def test_the_bug_is_known_by_what_is_asked() -> None:
    assert said("_fsdp_param", ASKS.format(known="")) is None
    assert said("_fsdp_param", ASKS.format(known='not hasattr(self, "_unsharded_param") or ')) is not None
    assert said("_fsdp_param", "class FSDPParam: ...") is not None
    assert said("_fsdp_param_group", REDUCES.format(other="unsharded_grad_data")) is None
    assert said("_fsdp_param_group", REDUCES.format(other="unsharded_zero_grad_data")) is not None
    assert said("_fsdp_param_group", "class FSDPParamGroup: ...") is not None


def test_a_unit_that_was_never_gathered_is_not_asked() -> None:
    module = ModuleType(f"{HOME}_fsdp_param")

    class FSDPParam:
        asked = 0

        def to_accumulated_grad_if_needed(self) -> None:
            self.asked += self._unsharded_param  # type: ignore[attr-defined]

    module.FSDPParam = FSDPParam  # type: ignore[attr-defined]
    PATCH.apply(Patch("p", Journal()), module)
    param: Any = FSDPParam()
    param.to_accumulated_grad_if_needed()
    param._unsharded_param = 1
    param.to_accumulated_grad_if_needed()
    assert param.asked == 1


class Gradient:
    """As much of a tensor as is asked for."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def to(self, dtype: str) -> Gradient:
        return self if dtype == self.dtype else Gradient(dtype)


@pytest.mark.parametrize(
    ("dtypes", "reduce_dtype", "reduced"),
    [
        (["float32", "bfloat16"], "float32", ["float32", "float32"]),
        (["bfloat16", "bfloat16"], "float32", ["bfloat16", "bfloat16"]),
        (["float32", "bfloat16"], None, ["float32", "bfloat16"]),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_gradients_of_several_dtypes_get_that_of_the_sum(
    dtypes: list[str], reduce_dtype: str | None, reduced: list[str], named: bool
) -> None:
    module, got = ModuleType(f"{HOME}_fsdp_param_group"), list[Gradient]()

    def foreach_reduce(fsdp_params: list[Any], unsharded_grads: list[Gradient], group: str) -> str:
        got.extend(unsharded_grads)
        unsharded_grads.clear()  # as torch does, to free them
        return group

    module.foreach_reduce = foreach_reduce  # type: ignore[attr-defined]
    PATCH.apply(Patch("p", Journal()), module)
    grads = [Gradient(dtype) for dtype in dtypes]
    given, params = [*grads], [SimpleNamespace(reduce_dtype=reduce_dtype)] * len(grads)
    ran: Any = module.foreach_reduce
    said = {"fsdp_params": params, "unsharded_grads": given, "group": "g"}
    assert (ran(**said) if named else ran(params, given, "g")) == "g"
    assert given == []
    assert [grad.dtype for grad in got] == reduced
    assert got[0] is grads[0]
