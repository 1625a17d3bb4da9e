"""A DeepSpeed that nobody has tried, which calls otherwise what a patch reads: the training goes on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.lab import envs, launch

STACK = envs.NEWEST
PROGRAM = "tests.programs.renamed_groups"
OLD, NEW, VERSION = "fp16_groups", "low_precision_groups", "0.99.0"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What differs from the newest stack's DeepSpeed: ``OLD`` is renamed, the version is another."""
    stack = envs.read_stacks()[STACK]
    envs.make(stack)
    site = next((stack.folder / "lib").glob("python*")) / "site-packages"
    folder = tmp_path_factory.mktemp("release")
    for path in site.joinpath("deepspeed").rglob("*.py"):
        text = path.read_text()
        is_version = path.name == "git_version_info_installed.py"
        renamed = re.sub(r"version='[^']*'", f"version='{VERSION}'", text, count=1) if is_version else text
        renamed = renamed.replace(OLD, NEW)
        if renamed != text:
            copy = folder / path.relative_to(site)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(renamed)
    recorded = folder / f"deepspeed-{VERSION}.dist-info"
    recorded.mkdir()
    recorded.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {VERSION}\n")
    return folder


def train(release: Path, *words: str) -> dict[str, Any]:
    stack = envs.read_stacks()[STACK]
    command: list[str | Path] = ["torchrun", "--standalone", "--nproc_per_node", "1", "-m", PROGRAM, release]
    finished = launch.run(stack, [*command, *words], limit=120, waiting=True)
    assert finished.rc == 0, str(finished)
    printed = next(line for line in finished.output.splitlines() if line.startswith('{"version"'))
    found: dict[str, Any] = json.loads(printed)
    return found


def test_a_name_that_is_gone_ends_no_training(release: Path) -> None:
    bare, patched = train(release), train(release, "--patched")
    assert bare["version"] == patched["version"] == VERSION
    assert patched["losses"] == bare["losses"]
    assert f"has no {OLD} where the patch reads it; nothing was changed" in patched["said"]
