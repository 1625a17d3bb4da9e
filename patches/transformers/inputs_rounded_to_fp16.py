"""Nothing is seen: images and sounds are rounded to fp16 on their way into a float32 model.

What the user sees: under DeepSpeed, with any ZeRO stage, HF Trainer's gradients are up to 1e-3 off those of
DDP, and an input above 65504 becomes infinite. DeepSpeed's configuration has no ``fp16`` and no ``bf16``, or
an ``fp16`` without ``enabled``. With ``--bf16`` beside such a configuration the inputs of a bfloat16 model
are rounded to fp16 first.

Why: Trainer casts inputs that are no integers to the dtype of ``HfTrainerDeepSpeedConfig``, which is decided
while ``TrainingArguments`` are made, and takes a configuration that names no precision for fp16. Accelerate
writes a precision into it only later, and DeepSpeed takes one without ``enabled`` for float32.

Since HF Trainer has DeepSpeed (looked at from 4.35.0 on), until 5.0.0, which takes such a configuration for
float32.

The change: where the answer was fp16 and the configuration, once accelerate has completed it, does not enable
fp16, the answer is what DeepSpeed computes in: bfloat16 where that is enabled, float32 elsewhere. A
configuration that accelerate has not seen yet, NVIDIA's amp, and a subclass that decides by itself are left
alone.

Upstream: https://github.com/huggingface/transformers/blob/v5.0.0/src/transformers/integrations/deepspeed.py,
which asks whether fp16 is enabled
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

OWNER = "HfTrainerDeepSpeedConfig"
DECIDED = "trainer_config_process"
FP16, BF16, AMP = "fp16.enabled", "bf16.enabled", "amp.enabled"
COMPLETED = ("fp16", "bf16")  # what accelerate has seen has both


def look(code: Code) -> str | None:
    """It must take for fp16 what is not said to be none."""
    function = code.function(f"{OWNER}.{DECIDED}")
    if function is None or code.function(f"{OWNER}.dtype") is None:
        raise Unrecognised(f"{OWNER} has no {DECIDED} or no dtype")
    if f'is_true("{FP16}")' in function:
        return "a configuration that names no precision is taken for float32"
    if f'is_false("{FP16}")' not in function:
        raise Unrecognised(f"{DECIDED} does not ask whether fp16 is enabled")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Answer what DeepSpeed computes in."""
    owner = getattr(module, OWNER)

    def dtype(original: Callable[..., Any], self: Any, /) -> Any:
        answer = original(self)
        if answer is not module.torch.float16 or not taken_for_fp16(self):
            return answer
        if getattr(type(self), DECIDED) is not getattr(owner, DECIDED):
            return answer
        return module.torch.bfloat16 if self.is_true(BF16) else module.torch.float32

    patch.wrap(owner, "dtype", dtype)


def taken_for_fp16(configuration: Any) -> bool:
    """Whether accelerate has completed it and it enables fp16 nowhere."""
    completed = all(name in configuration.config for name in COMPLETED)
    return completed and not configuration.is_true(FP16) and not configuration.is_true(AMP)
