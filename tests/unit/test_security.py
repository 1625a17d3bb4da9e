"""SECURITY.md, line by line."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from vlmpatch.catalog import environment
from vlmpatch.catalog.read import SCHEMA, read
from vlmpatch.tools.doctor import installation

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
SOURCES = [path for folder in ("vlmpatch", "patches") for path in sorted((ROOT / folder).rglob("*.py"))]
BAIT = "import sys; print('BAIT ' + __name__); sys.exit(99)\n"
deadlock: Any = importlib.import_module("vlmpatch.patches._shared.deadlock")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel in it; its interpreter."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "uv", "build", "--wheel", "--no-build-isolation", "-o", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "uv", "venv", "--python", sys.executable, folder / "env")
    python = folder / "env" / "bin" / "python"
    run(sys.executable, "-m", "uv", "pip", "install", "--python", python, wheel)
    return python


def run(*words: str | Path, cwd: Path | None = None, **env: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VLMPATCH"))}
    kept["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env={**kept, **env}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def package(python: Path) -> Path:
    return Path(run(python, "-c", "import vlmpatch; print(vlmpatch.__path__[0])", cwd=python.parent).strip())


def bait(folder: Path) -> Path:
    """A folder with everything that an attacker might have us import."""
    for name in ("packaging", "rich", "tomli", "wrapt", "torch", "transformers", "deepspeed", "trainer"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "__init__.py").write_text(BAIT)
    for name in ("sitecustomize", "usercustomize", "json", "vlmpatch_plugins", "conftest"):
        (folder / f"{name}.py").write_text(BAIT)
    (folder / "patches" / "evil").mkdir(parents=True)
    (folder / "patches" / "evil" / "evil.py").write_text(BAIT)
    for name in ("compat.toml", "vlmpatch.toml", "pyproject.toml"):
        (folder / name).write_text("schema = 99\n[tool.vlmpatch]\npatches = 'patches'\n")
    return folder


def test_every_line_of_the_page_has_a_test() -> None:
    lines = set(re.findall(r"^\| (S\d+) \|", PAGE, re.M))
    assert lines == {name.split("_")[1].upper() for name in globals() if re.match(r"test_s\d+_", name)}


def test_s1_nothing_at_interpreter_start(installed: Path) -> None:
    site = package(installed).parent
    assert not [path for path in site.glob("*.pth") if "vlmpatch" in path.read_text()]
    assert not (site / "sitecustomize.py").exists()
    (points,) = site.glob("vlmpatch-*.dist-info/entry_points.txt")
    assert points.read_text().split() == [
        "[console_scripts]",
        "vlmpatch",
        "=",
        "vlmpatch.tools.cli:entry_point",
    ]
    assert (
        run(installed, "-c", "import sys; print('vlmpatch' in sys.modules, len(sys.meta_path))")
        == "False 3\n"
    )


def test_s2_no_code_from_the_environment(tmp_path: Path) -> None:
    folder = bait(tmp_path)
    values = ("evil.evil", "patches.evil.evil", str(folder / "evil.py"), "__import__('os')", "{0.__class__}")
    for value in values:
        read = environment.read(
            dict.fromkeys(environment.NAMES, value),
            ["x"],
        )
        assert read[:3] == environment.Settings()[:3]
    asked = {name for path in SOURCES for name in re.findall(r"VLMPATCH_[A-Z]+", path.read_text("utf-8"))}
    assert asked <= set(environment.NAMES)


def test_s3_nothing_from_the_folder_a_job_runs_in(installed: Path, tmp_path: Path) -> None:
    folder = bait(tmp_path)
    probe = "import sys; sys.path.pop(0); import vlmpatch; print(len(vlmpatch.status()) > 20)"
    out = run(installed, "-c", probe, cwd=folder, HOME=str(folder), XDG_CONFIG_HOME=str(folder))
    assert out == "True\n"


@pytest.mark.parametrize(
    "id_", ["evil.evil", "..evil", "a/b", "os", "/tmp/evil", "deepspeed.deepspeed..x", "evil"]
)
def test_s4_a_catalog_is_data(id_: str, tmp_path: Path) -> None:
    entry = (ROOT / "compat.toml").read_text().partition("[[patch]]")[2].partition("[[patch]]")[0]
    changed = re.sub(r'id = "[^"]+"', f'id = "{id_}"', entry, count=1)
    bait(tmp_path / "beside")
    path = tmp_path / "compat.toml"
    path.write_text(f"schema = {SCHEMA}\n[[patch]]{changed}")
    (tmp_path / "patches").mkdir()
    known = read(str(path))
    assert not known.entries
    assert any(problem.where.endswith(", id") for problem in known.problems)


def test_s5_the_console_script_imports_nothing_from_here(installed: Path, tmp_path: Path) -> None:
    folder = bait(tmp_path)
    for words in (("--version",), ("list",), ("doctor",), ("explain", "zero3-uneven-calls")):
        done = subprocess.run(
            [installed.parent / "vlmpatch", *words], cwd=folder, capture_output=True, text=True, env={}
        )
        assert "BAIT" not in done.stdout + done.stderr
        assert done.returncode in (0, 1), done.stderr


def test_s6_files_are_compared_with_the_record(installed: Path, tmp_path: Path) -> None:
    found = package(installed)
    copy = tmp_path / "site"
    run("cp", "-r", found.parent, copy)
    assert installation.compare(str(copy / "vlmpatch")).sound
    assert installation.compare(str(copy / "vlmpatch")).record
    changed = copy / "vlmpatch" / "patches" / "torch" / "torch_checkpoint_default.py"
    changed.write_text(changed.read_text() + "\n")
    (copy / "vlmpatch" / "patches" / "torch" / "evil.py").write_text(BAIT)
    (copy / "vlmpatch" / "gate" / "verdict.py").unlink()
    compared = installation.compare(str(copy / "vlmpatch"))
    assert compared.changed == ("vlmpatch/patches/torch/torch_checkpoint_default.py",)
    assert compared.foreign == ("vlmpatch/patches/torch/evil.py",)
    assert compared.missing == ("vlmpatch/gate/verdict.py",)
    assert "gate/verdict.py" in compared.sentence()
    (copy / "vlmpatch" / "gate" / "verdict.py").write_text(
        (ROOT / "vlmpatch" / "gate" / "verdict.py").read_text()
    )
    env = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(
        [installed, "-m", "vlmpatch", "doctor"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert "D10" in done.stdout
    assert "patches/torch/evil.py" in done.stdout.replace("\n", "").replace(" ", "")
    assert done.returncode == 1
    assert installation.compare(str(ROOT / "vlmpatch")) == installation.Comparison(None)


def test_s7_what_is_read_is_not_run() -> None:
    """No ``eval``, ``exec``, ``compile`` of what is read, no pickle, no shell."""
    for path in SOURCES:
        calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
        named = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
        assert not named & {"eval", "exec", "compile", "__import__"}, path
        text = path.read_text("utf-8")
        assert not re.search(r"shell=True|os\.system|^import (pickle|shelve)\b", text, re.M), path


def test_s8_no_network() -> None:
    for path in SOURCES:
        assert not re.search(
            r"^\s*(import|from) (socket|urllib|http|requests|ssl|ftplib)\b", path.read_text("utf-8"), re.M
        )


def test_s9_words_in_the_store_end_nothing_by_themselves() -> None:
    from tests.unit.test_deadlock import STILL, Store

    store = Store()
    monitor = deadlock.RankMonitor(store, "p", [0, 1], 0, STILL, str)
    monitor.note(1, 8)
    for nonce, case in (("guessed", "c"), (monitor.nonce, "c"), (monitor.nonce, "-")):
        for look in range(40):
            word = {"kind": "end", "nonce": nonce, "number": 1, "case": case, "text": "BAIT"}
            store.set("p/word/0", __import__("json").dumps(word))
            assert monitor.look(1000.0 + 15 * look)[0] != "end", (nonce, case)


def test_s10_patch_sets_are_switched_on_by_name_alone(installed: Path, tmp_path: Path) -> None:
    probe = "import vlmpatch; print(sorted(s.set for s in vlmpatch.status().values() if s.set), *sys.modules)"
    folder = tmp_path / "job"
    for name in ("evil", "acme_vl_patches"):  # folders beside the job, in the form of a set
        (folder / name / "patches").mkdir(parents=True)
        (folder / name / "__init__.py").write_text(BAIT)
        (folder / name / "compat.toml").write_text("schema = 1\n")
    for value in ("evil", "../evil", "patches.evil.evil", "os", "acme_vl_patches"):
        out = run(installed, "-c", f"import sys; {probe}", cwd=folder, VLMPATCH_SETS=value)
        assert f"VLMPATCH_SETS: there is no patch set {value!r}" in out
        assert "BAIT" not in out
    example = ROOT / "examples" / "patch-set" / "acme_vl_patches"
    site = shutil.copytree(example, tmp_path / "site" / "acme_vl_patches")
    (site / "__init__.py").write_text(BAIT)
    info = tmp_path / "site" / "acme_vl_patches-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-vl-patches\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[vlmpatch.patch_sets]\nacme-vl = acme_vl_patches\n")
    path = {"PYTHONPATH": str(tmp_path / "site")}
    for env, named in ((path, "[]"), ({**path, "VLMPATCH_SETS": "acme-vl"}, "['acme-vl', 'acme-vl']")):
        out = run(installed, "-c", f"import sys; {probe}", cwd=tmp_path, **env)
        assert out.startswith(named)
        assert "acme_vl_patches" not in out
        assert "BAIT" not in out


def test_the_wheel_says_where_its_files_come_from(installed: Path) -> None:
    (dist,) = package(installed).parent.glob("vlmpatch-*.dist-info/RECORD")
    assert "vlmpatch/compat.toml,sha256=" in dist.read_text()
    assert zipfile.is_zipfile(next(installed.parents[2].glob("*.whl")))
