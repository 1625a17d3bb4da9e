"""``examples/downstream`` on the stack it pins: it trains, and an upgrade is seen before that."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.lab import envs, launch
from tests.lab.envs import Stack
from vlmpatch.lockfile import lock
from vlmpatch_lab.ports import free_port

EXAMPLE = launch.ROOT / "examples" / "downstream"
STACK = "tf457-ds0182"
LOCK = ("python", "-m", "vlmpatch", "lock")
NEW = """
[[patch]]
id = "one-patch-more"
failures = ["F4"]
severity = "silent"
summary = "What a later release has besides."
targets = ["transformers.trainer"]
requires = { transformers = ">=4.45" }
upstream = ["https://example.org"]
"""


@pytest.fixture(scope="module")
def stack() -> Stack:
    found = envs.read_stacks()[STACK]
    envs.make(found)
    return found


@pytest.fixture
def downstream(tmp_path: Path) -> Path:
    unwanted = shutil.ignore_patterns("__pycache__", "out")
    return Path(shutil.copytree(EXAMPLE, tmp_path / "downstream", ignore=unwanted))


def run(
    stack: Stack, words: tuple[str | Path, ...], cwd: Path, vlmpatch: Path = launch.ROOT
) -> launch.Finished:
    path = os.pathsep.join(map(str, [launch.STARTUP, vlmpatch]))
    return launch.run(stack, words, limit=240, cwd=cwd, env={"PYTHONPATH": path})


def upgraded(folder: Path) -> Path:
    """A vlmpatch with one patch more."""
    for name in ("vlmpatch", "vlmpatch_lab", "patches", "failures", "cases", "data"):
        shutil.copytree(launch.ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "compat.toml").write_text((launch.ROOT / "compat.toml").read_text("utf-8") + NEW, "utf-8")
    source = "def look(code):\n    return None\n\n\ndef apply(patch, module):\n    pass\n"
    (folder / "patches" / "transformers" / "one_patch_more.py").write_text(source)
    return folder


def test_it_trains_and_an_upgrade_is_seen(stack: Stack, downstream: Path, tmp_path: Path) -> None:
    written = run(stack, LOCK, downstream)
    assert written.rc == 0, written
    tested = run(stack, ("python", "-m", "unittest"), downstream)
    assert (tested.rc, "Ran 3 tests" in tested.output) == (0, True), tested
    newer = upgraded(tmp_path / "newer")
    asked = run(stack, (*LOCK, "--diff", "--annotations", "github"), downstream, newer)
    assert (asked.rc, "line=1,title=vlmpatch%3A Applied from now on::one-patch-more: " in asked.output) == (
        1,
        True,
    )
    message = run(stack, (*LOCK, "--diff", "--markdown"), downstream, newer)
    assert "patches: 1 added, 0 removed, 0 changed; versions: 0 changed" in message.output.splitlines()[0]
    refused = run(stack, ("python", "-m", "tiny_vl.train", "--output", "out"), downstream, newer)
    assert refused.rc == 1
    assert "PatchError: what is applied here is not what " in refused.output
    assert "applied and not in it: one-patch-more." in refused.output
    assert run(stack, LOCK, downstream, newer).rc == 0
    assert run(stack, (*LOCK, "--diff"), downstream, newer).rc == 0


@pytest.mark.slow
def test_two_ranks_train_with_the_lock_that_is_shipped(stack: Stack, downstream: Path) -> None:
    """Written anew by ``python -m tests.lab.downstream`` when a patch that acts there has changed."""
    assert run(stack, (*LOCK, "--diff"), downstream).rc == 0
    words = ("torchrun", "--nproc_per_node", "2", "--master_port", str(free_port()), "-m", "tiny_vl.train")
    trained = run(stack, (*words, "--output", "out", "--steps", "4"), downstream)
    assert trained.rc == 0, trained
    assert (downstream / "out" / "model.safetensors").exists()
    assert lock.read(str(downstream / "vlmpatch.lock")).packages["transformers"] == "4.57.6"


@pytest.mark.slow
@pytest.mark.parametrize("strict", ["", "1"])
def test_two_ranks_that_are_not_as_locked(stack: Stack, tmp_path: Path, strict: str) -> None:
    """Warned of once and trained; or, where that was asked for, refused on every rank at once."""
    held = tmp_path / "vlmpatch.lock"
    text = (EXAMPLE / "vlmpatch.lock").read_text("utf-8")
    held.write_text(text.replace('transformers = "4.57.6"', 'transformers = "4.57.5"'), "utf-8")
    script = tmp_path / "ranks.py"
    script.write_text(
        "import vlmpatch\nimport torch.distributed as dist\n"
        "dist.init_process_group('gloo')\ndist.barrier()\nprint('trained', flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    words = ("torchrun", "--nproc_per_node", "2", "--master_port", str(free_port()), script)
    env = {"VLMPATCH_LOCK": str(held), "VLMPATCH_STRICT": strict}
    done = launch.run(stack, words, limit=120, env=env)
    said = "other versions: transformers 4.57.6 for 4.57.5"
    if strict:
        assert (done.rc != 0, done.timed_out, "trained" in done.output) == (True, False, False), done
        assert f"VLMPATCH_LOCK: what is applied here is not what {held} has: {said}" in done.output
    else:
        assert (done.rc, done.output.count("trained"), done.output.count(said)) == (0, 2, 1), done
