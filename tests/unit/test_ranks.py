"""Nodes with other versions are noticed, and nothing that goes wrong there is anybody's trouble."""

from __future__ import annotations

import importlib
import json
import re
import sys
from typing import Any

import pytest

from tests.conftest import World
from vlmpatch.watch import ranks

DISTRIBUTED = """
store, rank, size = None, 0, 2

def init_process_group(backend=None):
    return backend

def get_rank():
    return rank

def get_world_size():
    return size

def _get_default_store():
    return store
"""


class Store(dict[str, str]):
    """As torch's: bytes come back, and what is there stays."""

    def compare_set(self, key: str, expected: str, wanted: str) -> bytes:
        if self.get(key, "") == expected:
            self[key] = wanted
        return self[key].encode()


@pytest.fixture
def distributed(world: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch.distributed as it is named there, with a store; not imported yet."""
    ours = ("vlmpatch.bootstrap", "vlmpatch.imports.finder")  # this process has a vlmpatch of its own
    others = [finder for finder in sys.meta_path if type(finder).__module__ not in ours]
    monkeypatch.setattr(sys, "meta_path", others)
    (world.folder / "torch").mkdir()
    (world.folder / "torch" / "__init__.py").write_text("")
    (world.folder / "torch" / "distributed").mkdir()
    (world.folder / "torch" / "distributed" / "__init__.py").write_text("from .distributed_c10d import *\n")
    (world.folder / "torch" / "distributed" / "distributed_c10d.py").write_text(DISTRIBUTED)
    importlib.invalidate_caches()
    for name in ("RUN_ID", "RESTART_COUNT"):
        monkeypatch.delenv(f"TORCHELASTIC_{name}", raising=False)
    return world


def begin(world: World, store: Any, rank: int = 0, size: int = 2, **environ: str) -> None:
    """A rank's process group begins, in an engine of its own."""
    if not world.engines:
        world.patch("nothing_here", '{ fakelib = ">=1", otherlib = ">=1" }')
    engine = world.engine(**environ)
    module = importlib.import_module(ranks.DOOR)
    holder = importlib.import_module("torch.distributed")
    vars(module).update(store=store, rank=rank, size=size)
    assert holder.init_process_group("gloo") == "gloo"
    engine.undo([])
    engine.hooks.remove()
    assert not hasattr(module.init_process_group, "__wrapped__")
    vars(module)["store"] = Broken()
    assert holder.init_process_group("nccl") == "nccl"
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        del sys.modules[name]


def test_the_same_everywhere_is_not_spoken_of(distributed: World, warnings: list[str]) -> None:
    distributed.distribution("fakelib", "1.5+cu128")
    store = Store()
    begin(distributed, store)
    begin(distributed, store, rank=1)
    assert len(store) == 1
    assert warnings == []


def test_another_version_is_named_and_an_absent_one_is_not(distributed: World, warnings: list[str]) -> None:
    store = Store()
    distributed.distribution("fakelib", "1.5+cu128")
    distributed.distribution("otherlib", "1.0")
    begin(distributed, store, rank=3)
    (distributed.folder / "fakelib-1.5+cu128.dist-info" / "METADATA").write_text("Version: 1.6\n")
    (distributed.folder / "otherlib-1.0.dist-info" / "METADATA").unlink()
    (distributed.folder / "otherlib-1.0.dist-info").rmdir()
    begin(distributed, store, rank=1)
    assert len(warnings) == 1
    assert warnings[0].startswith("vlmpatch: rank 1 differs from rank 3: fakelib 1.6 (there 1.5). ")


def test_what_is_switched_off_on_one_rank_is_named(distributed: World, warnings: list[str]) -> None:
    id_ = distributed.patch("nothing_here", '{ fakelib = ">=1" }')
    distributed.patch("nothing_here", '{ fakelib = ">=1" }')
    store = Store()
    begin(distributed, store)
    begin(distributed, store, rank=1, VLMPATCH_DISABLE=id_)
    assert [f"switched off {id_} (there nothing)" in text for text in warnings] == [True]


def test_a_long_list_of_what_is_switched_off_on_every_rank_is_no_difference(
    distributed: World, warnings: list[str]
) -> None:
    ids = [distributed.patch("nothing_here", '{ fakelib = ">=1" }') for _ in range(12)]
    store = Store()
    begin(distributed, store, VLMPATCH_DISABLE=",".join(ids))
    (first,) = store.values()
    assert len(json.loads(first)["facts"]["switched off"]) > ranks.SHOWN
    begin(distributed, store, rank=1, VLMPATCH_DISABLE=",".join(ids))
    assert warnings == []
    begin(distributed, store, rank=2, VLMPATCH_DISABLE=",".join(ids[:-1]))
    assert [ids[0] in text and ids[-1] not in text for text in warnings] == [True]


def test_other_patch_files_and_another_lock_are_named(distributed: World, warnings: list[str]) -> None:
    store, lock = Store(), distributed.folder / "vlmpatch.lock"
    lock.write_text("schema = 1\n")
    begin(distributed, store, VLMPATCH_LOCK=str(lock))
    (file,) = distributed.patches.glob("*/*.py")
    file.write_text(file.read_text() + "# edited on this node\n")
    lock.unlink()
    begin(distributed, store, rank=1, VLMPATCH_LOCK=str(lock))
    (text,) = [text for text in warnings if "rank 1 differs from rank 0" in text]
    assert re.search(
        r"rank 0: VLMPATCH_LOCK cannot be read \(there \w{8}\), the patches \w{8} \(there \w{8}\)\. ", text
    )


def test_a_restart_compares_anew(distributed: World, warnings: list[str], monkeypatch: Any) -> None:
    store = Store()
    begin(distributed, store)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    begin(distributed, store, rank=1)
    assert len(store) == 2


class Broken:
    def compare_set(self, *_: str) -> bytes:
        raise RuntimeError("Connection reset by peer")


class Odd:
    def __init__(self, said: bytes) -> None:
        self.said = said

    def compare_set(self, *_: str) -> bytes:
        return self.said


ODD = [b"", b"\xff", b"[]", b'{"rank": 0}', b'{"rank": "x", "facts": {"vlmpatch": 1}}', b'{"facts": 3}']


@pytest.mark.parametrize("store", [None, Broken(), *map(Odd, ODD)], ids=range(len(ODD) + 2))
def test_a_store_that_fails_or_says_anything_is_no_trouble(
    distributed: World, warnings: list[str], store: Any
) -> None:
    begin(distributed, store)
    assert warnings == []


def test_one_rank_alone_asks_nobody(distributed: World, warnings: list[str]) -> None:
    store = Store()
    begin(distributed, store, size=1)
    assert store == {}


def test_with_everything_off_nobody_is_asked(distributed: World, warnings: list[str]) -> None:
    store = Store()
    begin(distributed, store, VLMPATCH_DISABLE="all")
    assert store == {}


def test_what_the_user_raises_is_his(distributed: World, warnings: list[str]) -> None:
    distributed.patch("nothing_here", '{ fakelib = ">=1" }')
    distributed.engine()
    module: Any = importlib.import_module(ranks.DOOR)
    with pytest.raises(TypeError):
        sys.modules[ranks.DOOR].init_process_group(colour="blue")
    module.store = Broken()
    assert module.init_process_group() is None


def test_torch_may_come_first(distributed: World, warnings: list[str]) -> None:
    holder = importlib.import_module("torch.distributed")
    plain, store = holder.init_process_group, Store()
    begin(distributed, store)
    assert len(store) == 1
    assert holder.init_process_group is plain


def test_what_another_program_has_put_there_is_left(distributed: World, warnings: list[str]) -> None:
    holder = importlib.import_module("torch.distributed")
    vars(holder)["init_process_group"] = str
    begin(distributed, Store())
    assert holder.init_process_group is str
