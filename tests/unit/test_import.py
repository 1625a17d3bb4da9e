"""What ``import vlmpatch`` does to a process: as little as can be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.waits import completed

CHECKOUT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "deepspeed", "peft", "wrapt", "rich", "packaging", "logging")


def python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT), **environ}
    return completed([sys.executable, "-c", code], cwd="/", env=env)


def test_nothing_heavy_is_imported() -> None:
    probe = (
        "import sys; before = set(sys.modules); import vlmpatch; "
        f"print(sorted((set(sys.modules) - before) & set({HEAVY})))"
    )
    assert python(probe).stdout == "[]\n"


def test_a_sound_start_says_nothing() -> None:
    done = python("import vlmpatch")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "environ",
    [{"VLMPATCH_DISABLE": "x\n;"}, {"VLMPATCH_STRICT": "perhaps"}, {"VLMPATCH_LOG": "🙂"}],
    ids=["disable", "strict", "log"],
)
def test_garbage_in_the_environment_is_one_line(environ: dict[str, str]) -> None:
    done = python("import vlmpatch; print('alive')", **environ)
    assert (done.returncode, done.stdout) == (0, "alive\n")
    assert next(iter(environ)) in done.stderr


def test_a_broken_catalog_does_not_break_the_host(tmp_path: Path) -> None:
    import shutil

    shutil.copytree(CHECKOUT / "vlmpatch", tmp_path / "vlmpatch")
    shutil.copytree(CHECKOUT / "patches", tmp_path / "patches")
    (tmp_path / "compat.toml").write_text("schema = 1\n[[patch]]\nid = ")
    done = python("import vlmpatch; print(vlmpatch.status())", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "{}\n")
    assert str(tmp_path / "compat.toml") in done.stderr
    assert "not valid TOML" in done.stderr


def test_other_ranks_stay_quiet() -> None:
    done = python("import vlmpatch", VLMPATCH_LOG="loud", LOCAL_RANK="1")
    assert done.stderr == ""


def test_public_face() -> None:
    done = python(
        "import vlmpatch\n"
        "from vlmpatch import *\n"
        "vlmpatch.require('vision-input-grads')\n"
        "with vlmpatch.disabled(): pass\n"
        "print(vlmpatch.undo(), {s.state.value for s in vlmpatch.status().values()})\n"
    )
    assert done.stdout == "[] {'off'}\n", done.stderr


def test_a_reload_keeps_what_is_patched() -> None:
    probe = (
        "import importlib, sys, vlmpatch; engine = vlmpatch._engine(); importlib.reload(vlmpatch)\n"
        "print(engine is vlmpatch._engine(), [type(f).__name__ for f in sys.meta_path].count('Hooks'))"
    )
    assert python(probe).stdout == "True 1\n"


def test_beside_a_folder_called_packaging(tmp_path: Path) -> None:
    (tmp_path / "packaging").mkdir()
    (tmp_path / "packaging" / "__init__.py").write_text("boxes = 3\n")
    probe = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import packaging, vlmpatch\n"
        "from vlmpatch.gate import versions\n"
        "print(len(vlmpatch.status()) > 0, versions.satisfies('5.0.0rc1', '>=5.0.0.dev0'), packaging.boxes)"
    )
    done = python(probe)
    assert done.stdout == "True True 3\n", done.stderr


@pytest.mark.parametrize("rank", ["", "0", "-1", "none"])
def test_a_rank_nobody_set_warns(rank: str) -> None:
    assert "VLMPATCH_LOG" in python("import vlmpatch", VLMPATCH_LOG="loud", LOCAL_RANK=rank).stderr


def test_a_module_of_the_users_called_packaging_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "packaging.py").write_text("print('run')\n")
    probe = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import vlmpatch\n"
        "from vlmpatch.gate import versions\n"
        "print(versions.satisfies('5.0.0rc1', '>=5.0.0.dev0'), 'packaging' in sys.modules)"
    )
    assert python(probe).stdout == "True False\n"
