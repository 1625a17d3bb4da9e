"""More image slices than the vision tower takes in one call."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, known, quote
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    most, batch = launch.get("max_slice_nums"), launch.get("vision_batch_size")
    size = (batch.number if batch else 16) or 16
    samples = launch.get("per_device_train_batch_size")
    wanted = ((most.number or 0) + 1) * ((samples.number if samples else 1) or 1) if most else 0
    if most is None or wanted <= size:
        return
    failure = {0: "F3", 1: "F1", 2: "F1", 3: "F11"}[launch.stage]
    title = around.say(
        "Up to {wanted} image slices a step, {size} a call: the vision tower is called several times.",
        wanted=wanted,
        size=size,
    )
    yield known(around, "L03", failure, title, quote(most), f'"vision_batch_size": {wanted}')
