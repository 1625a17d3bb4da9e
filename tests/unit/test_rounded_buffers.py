"""Which buffers stay whole, and what is taken for an engine and for FSDP1 as releases have them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from patches._shared.float32_buffers import float32_buffers
from patches.deepspeed import deepspeed_rounded_buffers as of_deepspeed
from patches.torch import fsdp1_rounded_buffers as of_fsdp1
from vlmpatch import api

ENGINE = """
class DeepSpeedEngine:
    def _configure_distributed_model(self, model):
        self.module.bfloat16()
"""
UNITS = """
def _get_buffers_and_dtypes_for_computation(state, root_module):
    return buffers, buffer_dtypes

def _cast_buffers_to_dtype_and_device(buffers, buffer_dtypes, device):
    if buffer_dtype is None:
        pass
"""


class Buffer:
    def __init__(self, floating: bool = True) -> None:
        self.floating = floating

    def is_floating_point(self) -> bool:
        return self.floating


def module(home: Any, name: str = "LlamaRotaryEmbedding", **buffers: Any) -> Any:
    kind = type(name, (), {"__module__": home})
    made: Any = kind()
    made._buffers = buffers
    return made


def test_buffers_are_those_of_transformers_modules() -> None:
    whole, scaled, bias = Buffer(), Buffer(), Buffer()
    own = module(
        "transformers.models.qwen2.modeling_qwen2",
        inv_freq=whole,
        full_attention_inv_freq=scaled,
        e_score_correction_bias=bias,
        position_ids=Buffer(),
        none_inv_freq=None,
    )
    counted = module("transformers.models.llama.modeling_llama", inv_freq=Buffer(floating=False))
    homes: tuple[Any, ...] = ("__main__", "transformers_modules.x.modeling", None, 7)
    others = [module(home, inv_freq=Buffer()) for home in homes]
    # What these make of frequencies meets weights as it is.
    bros, clvp = "BrosPositionalEmbedding1D", "ClvpRotaryPositionalEmbedding"
    others += [module("transformers.models.x.modeling_x", name, inv_freq=Buffer()) for name in (bros, clvp)]
    model = SimpleNamespace(modules=lambda: [own, counted, *others])
    assert [each.value for each in float32_buffers(model)] == [whole, scaled, bias]


def test_engines_are_known_by_the_method_that_casts() -> None:
    known = api.Code("deepspeed.runtime.engine", "engine.py", ENGINE)
    assert of_deepspeed.look(known) is None
    with pytest.raises(api.Unrecognised, match="_configure_distributed_model"):
        of_deepspeed.look(api.Code("deepspeed.runtime.engine", "engine.py", ENGINE.replace(", model", "")))


@pytest.mark.parametrize("line", ["    return buffers, buffer_dtypes", "buffer_dtype is None"])
def test_fsdp1_is_known_by_what_names_dtypes_and_what_casts(line: str) -> None:
    assert of_fsdp1.look(api.Code("torch.distributed.fsdp._runtime_utils", "u.py", UNITS)) is None
    with pytest.raises(api.Unrecognised):
        of_fsdp1.look(
            api.Code("torch.distributed.fsdp._runtime_utils", "u.py", UNITS.replace(line, "    None"))
        )
