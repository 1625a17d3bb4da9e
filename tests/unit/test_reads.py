"""A release that nobody has tried must have what a patch reads of it, or the patch stays off there."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.conftest import World
from tests.matrix import reads as recorder
from tests.matrix import store
from vlmpatch.catalog.model import State
from vlmpatch.gate import reads, versions
from vlmpatch.gate.source import Code, Unrecognised

STAGE3 = "deepspeed.runtime.zero.stage3"
MODULES = {"ms-swift": "swift"}
READS = {
    "deepspeed.p": {STAGE3: ["fp16_groups"], reads.CHAINS: ["torch._C._current_graph_task_id"]},
    "swift.q": {"swift.trainers.mixin": ["_fix"]},
}
TESTED = {"deepspeed": "0.19.8", "torch": "2.15.0", "ms-swift": "4.6.0"}
HAS, HAS_NOT = "groups = self.fp16_groups", "groups = self.bf16_groups"


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "_record", lambda package: {"tested": TESTED, "reads": READS})


def check(module: str, target: str, source: str) -> str:
    entry: Any = SimpleNamespace(module=module, package="vlmpatch.patches")
    try:
        reads.check(entry, Code(target, "stage3.py", source), MODULES)
    except Unrecognised as gone:
        return str(gone)
    return ""


def runs(monkeypatch: pytest.MonkeyPatch, **running: str) -> None:
    monkeypatch.setattr(versions, "running", lambda distribution, module: running.get(module))


@pytest.mark.parametrize(
    ("version", "source", "says"),
    [
        ("0.19.8", HAS_NOT, ""),  # what was tried is what it is: its proof has run
        ("0.19.8+fork", HAS_NOT, ""),
        ("0.18.2", HAS_NOT, ""),
        ("0.20.0", HAS, ""),
        (
            "0.20.0.dev0",
            HAS_NOT,
            "0.20.0.dev0 is newer than any release this was tried on (0.19.8)",
        ),
        ("0.20.0", HAS_NOT, "and has no fp16_groups where the patch reads it"),
        ("nightly", HAS_NOT, "has no fp16_groups"),
        ("nightly", HAS, ""),
    ],
)
def test_what_is_gone_from_a_newer_release_keeps_the_patch_off(
    monkeypatch: pytest.MonkeyPatch, record: None, version: str, source: str, says: str
) -> None:
    runs(monkeypatch, deepspeed=version)
    found = check("deepspeed.p", STAGE3, source)
    assert says in found
    assert bool(says) == bool(found)


def test_a_patch_is_asked_for_what_it_reads_and_a_distribution_by_its_module(
    monkeypatch: pytest.MonkeyPatch, record: None
) -> None:
    runs(monkeypatch, deepspeed="1.0", swift="5.0")
    assert "ms-swift 5.0 is newer" in check("swift.q", "swift.trainers.mixin", "x = 1")
    assert check("swift.q", "swift.trainers.other", "x = 1") == ""
    assert check("unknown.r", STAGE3, HAS_NOT) == ""


def test_what_is_read_of_torch_itself(monkeypatch: pytest.MonkeyPatch, record: None) -> None:
    torch, extension = ModuleType("torch"), ModuleType("torch._C")
    monkeypatch.setitem(sys.modules, "torch", torch)
    torch._C = extension  # type: ignore[attr-defined]
    runs(monkeypatch, torch="2.16.0")
    assert "torch 2.16.0" in check("deepspeed.p", STAGE3, HAS_NOT)
    extension._current_graph_task_id = len  # type: ignore[attr-defined]
    assert check("deepspeed.p", STAGE3, HAS_NOT) == ""
    runs(monkeypatch, torch="2.15.0+cu130")
    del extension._current_graph_task_id
    assert check("deepspeed.p", STAGE3, HAS_NOT) == ""
    monkeypatch.setattr(extension, "__getattr__", len, raising=False)
    runs(monkeypatch, torch="2.16.0")
    assert check("deepspeed.p", STAGE3, HAS_NOT) == ""  # it may bring it when it is asked


def test_all_targets_are_asked_before_one_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: None
) -> None:
    package = tmp_path / "swift" / "trainers"
    package.mkdir(parents=True)
    package.joinpath("mixin.py").write_text("x = 1")
    for folder in (package, package.parent):
        folder.joinpath("__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    runs(monkeypatch, swift="5.0")
    assert "has no _fix" in check("swift.q", "swift.trainers.other", "self._fix")
    package.joinpath("mixin.py").unlink()
    assert check("swift.q", "swift.trainers.other", "x = 1") == ""


def test_nothing_is_asked_of_a_torch_that_is_not_imported(
    monkeypatch: pytest.MonkeyPatch, record: None
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    runs(monkeypatch, torch="2.16.0")
    assert check("deepspeed.p", STAGE3, HAS_NOT) == ""


@pytest.mark.parametrize(
    ("version", "state", "greets"),
    [("2.0", State.APPLIED, "goodbye you"), ("2.1", State.CONFLICT, "hello you")],
)
def test_the_engine_leaves_such_a_target_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch, version: str, state: State, greets: str
) -> None:
    world.distribution("fakelib", version)
    id_ = world.patch(world.package("fakelib"), '{ fakelib = ">=1,<3.dev0" }')
    engine = world.engine()
    module = engine.catalog.entries[id_].module
    record = {"tested": {"fakelib": "2.0"}, "reads": {module: {"fakelib": ["farewell"]}}}
    monkeypatch.setattr(reads, "_record", lambda package: record)
    assert importlib.import_module("fakelib").greet("you") == greets
    status = engine.status()[id_]
    assert status.state is state
    assert state is State.APPLIED or status.reason.endswith("patch reads it; nothing was changed")


@pytest.mark.parametrize("text", ["{", "[]", "\0"])
def test_a_broken_record_is_told_with_its_name_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    package = tmp_path / "broken_record"
    package.mkdir()
    package.joinpath("__init__.py").touch()
    package.joinpath(reads.FILE).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"reads\.json of broken_record .*install vlmpatch again"):
        reads._record("broken_record")


def test_a_patch_set_need_not_have_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "without_record"
    package.mkdir()
    package.joinpath("__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert reads._record("without_record") == {}


def test_the_record_is_of_what_patches_read_today() -> None:
    assert recorder.stale() == [], "python -m tests.matrix.reads"


def test_what_a_patch_reads_is_found(tmp_path: Path) -> None:
    path = tmp_path / "patch.py"
    path.write_text(
        "import functools\nimport torch\n\n"
        "def look(code):\n    return code.looked_at\n\n"
        "def apply(patch, module):\n"
        "    def wrapper(original, self):\n"
        "        self.groups[0].stored = 1\n"
        "        if getattr(self, 'guarded', None):\n            pass\n"
        "        torch._C._task(); torch.zeros(1); functools.partial\n"
        "    patch.wrap(module.Engine, 'step', wrapper)\n"
    )
    names, chains = recorder._of_file(str(path))
    assert names - {"wrap"} == {"groups", "Engine"}
    assert chains == {"torch._C._task"}


def test_the_record_knows_every_patch_that_acts_on_the_newest_releases() -> None:
    record = json.loads(recorder.RECORD.read_text())
    read = {name for targets in record["reads"].values() for names in targets.values() for name in names}
    assert {"fp16_groups", "bit16_groups", "_join_config", "_training_state"} <= read
    assert record["reads"].keys() <= {entry.module for entry in store.entries().entries.values()}
