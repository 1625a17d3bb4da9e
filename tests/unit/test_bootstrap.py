"""The compiled catalog, and the lazy finder that wakes the engine with the first target."""

from __future__ import annotations

import marshal
import os
import shutil
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.lab.waits import completed
from vlmpatch.catalog import index
from vlmpatch.catalog.model import Entry
from vlmpatch.catalog.read import read

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of its own, with no index yet."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("vlmpatch", "patches"):
        shutil.copytree(CHECKOUT / name, tmp_path / name, ignore=ignore)
    shutil.copy(CHECKOUT / "compat.toml", tmp_path)
    return tmp_path


def python(checkout: Path, code: str, *flags: str, **environ: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLMPATCH_", "PYTHON"))}
    kept |= {"XDG_CACHE_HOME": str(checkout / "cache"), **environ}
    done = completed(
        [sys.executable, *flags, "-c", code],
        env={**kept, "PYTHONPATH": str(checkout)},
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


AWAKE = "import sys, vlmpatch; print('vlmpatch.engine.engine' in sys.modules)"


def test_the_first_start_compiles_and_later_ones_only_stand_guard(checkout: Path) -> None:
    assert python(checkout, AWAKE) == "True"
    assert (checkout / "__pycache__" / "compat.index").is_file()
    assert python(checkout, AWAKE) == "False"


TORCH = """
def checkpoint(function, *args, use_reentrant=None, **kwargs):
    if use_reentrant is None:
        use_reentrant = True
    return use_reentrant


def checkpoint_sequential(functions, segments, input, use_reentrant=None, **kwargs):
    if use_reentrant is None:
        use_reentrant = True
    return use_reentrant
"""
ASKED = """
import sys
sys.path[:0] = {paths}
import vlmpatch
import torch.utils.checkpoint as module
print(module.checkpoint(print), vlmpatch.status()["torch-checkpoint-default"].state.value)
vlmpatch.undo()
print(module.checkpoint(print))
"""
FLAGS = [(), ("-O",), ("-OO",), ("-I",), ("-S",), ("-I", "-S", "-OO"), ("-bb", "-W", "error"), ("-X", "dev")]


@pytest.mark.parametrize("archived", [False, True], ids=["in a folder", "in a zip file"])
@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
def test_a_target_is_patched_whatever_python_is_told(
    checkout: Path, flags: tuple[str, ...], archived: bool
) -> None:
    files = {"torch/__init__.py": "", "torch/utils/__init__.py": "", "torch/utils/checkpoint.py": TORCH}
    (checkout / "installed" / "torch-2.8.0.dist-info").mkdir(parents=True)
    metadata = checkout / "installed" / "torch-2.8.0.dist-info" / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.8.0\n")
    with zipfile.ZipFile(checkout / "packed.zip", "w") as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    if not archived:
        with zipfile.ZipFile(checkout / "packed.zip") as packed:
            packed.extractall(checkout / "installed")
    paths = [checkout, checkout / "installed", checkout / "packed.zip", sysconfig.get_path("purelib")]
    code = ASKED.format(paths=[*map(str, paths)])
    assert python(checkout, code, *flags, VLMPATCH_LOG="off").split() == ["False", "applied", "True"]


RELOADED = """
import importlib, sys, types
import vlmpatch
states = vlmpatch.status()
for name in sorted(name for name in sys.modules if name.partition(".")[0] == "vlmpatch"):
    importlib.reload(sys.modules[name])
print(vlmpatch.status() == states, sum(type(each).__name__ == "Hooks" for each in sys.meta_path))
"""


def test_a_notebook_that_reloads_everything_has_one_engine(checkout: Path) -> None:
    assert python(checkout, RELOADED) == "True 1"


@pytest.mark.parametrize("way", ["no byte code", "a folder that takes none"])
def test_where_the_checkout_is_not_written_the_users_cache_is(checkout: Path, way: str) -> None:
    environ = {"PYTHONDONTWRITEBYTECODE": "1"} if way == "no byte code" else {}
    if not environ:
        (checkout / "__pycache__").write_text("a file")
    assert python(checkout, AWAKE, **environ) == "True"
    assert not (checkout / "__pycache__" / "compat.index").exists()
    assert python(checkout, AWAKE, **environ) == "False"
    (checkout / "compat.toml").write_text((checkout / "compat.toml").read_text() + "\n")
    assert python(checkout, AWAKE, **environ) == "True"


def test_only_the_users_own_cache_is_closed_to_others(checkout: Path) -> None:
    before = os.umask(0o022)
    try:
        python(checkout, AWAKE, PYTHONDONTWRITEBYTECODE="1")
        index.write(str(checkout / "compat.toml"), b"whole")
    finally:
        os.umask(before)
    modes = [(checkout / name).stat().st_mode & 0o777 for name in ("cache/vlmpatch", "__pycache__")]
    assert modes == [0o700, 0o755]


def test_an_index_that_another_user_wrote_is_not_read(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(checkout / "compat.toml")
    read(path)
    assert index.read(path) is not None
    real = os.stat
    forged = real(checkout / "__pycache__" / "compat.index")
    values = [*forged[:4], 12345, *forged[5:]]
    monkeypatch.setattr(
        os,
        "stat",
        lambda asked, **more: os.stat_result(values) if "index" in str(asked) else real(asked, **more),
    )
    assert index.read(path) is None


def test_a_changed_catalog_is_read_again(checkout: Path) -> None:
    python(checkout, AWAKE)
    text = (checkout / "compat.toml").read_text()
    changed = text.replace('summary = "', 'summary = "Changed: ', 1)
    (checkout / "compat.toml").write_text(changed)
    probe = "import vlmpatch; print(next(iter(vlmpatch._engine().catalog.entries.values())).summary)"
    assert python(checkout, probe).startswith("Changed: ")


def test_a_patch_file_that_moved_is_found_where_it_lies_now(checkout: Path) -> None:
    python(checkout, AWAKE)
    patches = checkout / "patches"
    (patches / "elsewhere").mkdir()
    (patches / "torch" / "torch_checkpoint_default.py").rename(
        patches / "elsewhere" / "torch_checkpoint_default.py"
    )
    probe = "import vlmpatch; print(vlmpatch._engine().catalog.entries['torch-checkpoint-default'].module)"
    assert python(checkout, probe) == "elsewhere.torch_checkpoint_default"


@pytest.mark.parametrize("rest", [b"", b"\x00", b"{", marshal.dumps({"format": 99}), marshal.dumps([1])])
def test_the_rest_of_an_index_harms_nothing(checkout: Path, rest: bytes) -> None:
    (checkout / "__pycache__").mkdir()
    (checkout / "__pycache__" / "compat.index").write_bytes(rest)
    assert python(checkout, "import vlmpatch; print(len(vlmpatch.status()) > 5)") == "True"


def test_a_folder_that_cannot_be_written_is_no_fault(checkout: Path) -> None:
    (checkout / "__pycache__").write_text("a file")
    assert python(checkout, "import vlmpatch; print(len(vlmpatch.status()) > 5)") == "True"


def test_what_a_killed_process_left_goes_in_time(checkout: Path) -> None:
    folder = checkout / "__pycache__"
    folder.mkdir(exist_ok=True)
    old, new, unused = folder / "compat.index.17", folder / "compat.index.18", folder / "elsewhere.index"
    for file in (old, new, unused):
        file.touch()
    os.utime(old, (0, 0))
    os.utime(unused, (0, 0))
    index.write(str(checkout / "compat.toml"), b"whole")
    assert not old.exists()
    assert not unused.exists()
    assert new.exists()  # another process may be writing it


def test_machines_that_share_the_folder_and_a_process_id_write_apart(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts: list[str] = []
    monkeypatch.setattr(os, "replace", lambda draft, place: drafts.append(draft))
    for _ in range(2):
        index.write(str(checkout / "compat.toml"), b"whole")
    assert len(set(drafts)) == 2


def test_the_index_says_what_the_catalog_says(checkout: Path) -> None:
    path = str(checkout / "compat.toml")
    parsed = read(path)
    index.write(path, index.dumps(Path(path).read_bytes(), parsed, Entry._fields))
    assert index.read(path) is not None
    assert read(path) == parsed


@pytest.mark.parametrize("way", ["import", "in memory", "public"])
def test_the_engine_wakes_when_it_is_needed(checkout: Path, way: str) -> None:
    python(checkout, AWAKE)
    package = checkout / "torch" / "utils"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "checkpoint.py").write_text("")
    ways = {
        "import": "import vlmpatch, torch.utils.checkpoint",
        "in memory": "import torch.utils.checkpoint, vlmpatch",
        "public": "import vlmpatch; vlmpatch.status()",
    }
    probe = (
        "import sys; awake = 'vlmpatch.engine.engine' in sys.modules; "
        "print(awake, [type(finder).__name__ for finder in sys.meta_path].count('LazyFinder'))"
    )
    assert python(checkout, f"{ways[way]}; {probe}") == "True 0"


def test_two_threads_wake_one_engine(checkout: Path) -> None:
    python(checkout, AWAKE)
    code = (
        "import threading, vlmpatch\n"
        "found = []\n"
        "threads = [threading.Thread(target=lambda: found.append(vlmpatch._engine())) for _ in range(16)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
        "print(len(set(map(id, found))), len(found))"
    )
    assert python(checkout, code) == "1 16"


def test_waking_needs_no_toml_parser(checkout: Path) -> None:
    python(checkout, AWAKE)
    parsers = "{'tomllib', 'tomli'} & sys.modules.keys()"
    assert python(checkout, f"import sys, vlmpatch; vlmpatch._engine(); print({parsers})") == "set()"
