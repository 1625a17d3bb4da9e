"""Samples without an image among those with one, or a text-only data set under ZeRO-3."""

from __future__ import annotations

import os
from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, known, quote
from vlmpatch.tools.lint.data import count
from vlmpatch.tools.lint.launch_config import LaunchConfig


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    given = launch.get("dataset", "data_path", "train_file", "dataset_name", "train_data_path")
    if given is None or (around.model and not around.model.vision):
        return
    for path in given.value.split(","):
        counted = count(path) if os.path.isfile(path) else None
        if counted is None or counted.rows == 0 or counted.images == counted.rows:
            continue
        failure = {0: "F19", 1: "F16", 2: "F16", 3: "F11"}[launch.stage]
        if counted.images == 0 and launch.stage != 3:
            continue
        title = around.say(
            "{without} of {rows} samples have no image: ranks then wait for each other.",
            without=counted.rows - counted.images,
            rows=counted.rows,
        )
        fix = around.say("give each of them an image; a blank one will do")
        yield known(around, "L05", failure, title, quote(given), fix)
