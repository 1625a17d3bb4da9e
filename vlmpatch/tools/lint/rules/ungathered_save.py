"""ZeRO-3 that does not gather what it saves."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, link, quote, written
from vlmpatch.tools.lint.launch_config import LaunchConfig

_GATHERS = (
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.gather_16bit_weights_on_model_save",  # DeepSpeed reads its own field's name too
    "deepspeed_config.zero3_save_16bit_model",
    "zero3_save_16bit_model",
)


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    given = launch.get(*_GATHERS)
    stated = launch.get("zero_optimization.stage", "deepspeed_config.zero_stage", "zero_stage")
    if launch.stage == 3 and stated and (given is None or given.off) and launch.lora is None:
        title = around.say("Nothing gathers the weights when the model is saved.")
        accelerates = "zero_optimization" not in stated.name
        name = "zero3_save_16bit_model" if accelerates else "stage3_gather_16bit_weights_on_model_save"
        yield Finding(
            "L06", "warning", title, quote(given or stated), written(stated, name, "true"), link("F25")
        )
