"""``ValueError: warmup_num_steps must be a positive integer, got 0``.

Why: a DeepSpeed configuration whose scheduler says ``"warmup_num_steps": "auto"`` gets transformers'
number of warm-up steps, which is 0 in a run without warm-up. DeepSpeed took 0 for 2 until 0.19.3, which
refuses it.

Since DeepSpeed 0.19.3; transformers fills in at least 1 from 5.18.0.

The change: ``"auto"`` becomes at least 1, which DeepSpeed takes for 2 as it always did. A number in the
configuration stands.

Upstream: https://github.com/deepspeedai/DeepSpeed/pull/8126
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

_KEY = "scheduler.params.warmup_num_steps"


def look(code: Code) -> str | None:
    """transformers must fill the value in as it is."""
    function = code.function("HfTrainerDeepSpeedConfig.fill_match")
    if function is None or function.parameters[:3] != ("self", "ds_key_long", "hf_val"):
        raise Unrecognised("HfTrainerDeepSpeedConfig.fill_match has other parameters")
    finalize = code.function("HfTrainerDeepSpeedConfig.trainer_config_finalize")
    if finalize is None or _KEY not in finalize:
        raise Unrecognised(f"trainer_config_finalize does not fill in {_KEY}")
    if "max(1, args.get_warmup_steps" in finalize:
        return "transformers fills in at least 1"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Raise an automatic 0 to 1."""

    def at_least_one(
        original: Any, self: Any, /, ds_key_long: str, hf_val: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if ds_key_long == _KEY and hf_val == 0 and self.get_value(_KEY) == "auto":
            hf_val = 1
            patch.warn("zero", "DeepSpeed refuses to warm up over 0 steps; say --warmup_steps 1.")
        return original(self, ds_key_long, hf_val, *args, **kwargs)

    patch.wrap(module.HfTrainerDeepSpeedConfig, "fill_match", at_least_one)
