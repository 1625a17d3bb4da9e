"""Wheel, wheel from sdist, editable install and a bare checkout: each finds its patches and catalog."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from tests.lab.waits import completed
from tests.matrix import rows

CHECKOUT = Path(__file__).resolve().parents[2]
PROBE = (
    "import os, vlmpatch, vlmpatch.catalog.read as c, vlmpatch.catalog.location as i\n"
    "import vlmpatch.patches.transformers.vision_input_grads as p\n"
    "assert len(vlmpatch.status()) == len(c.read(i.default_path()).entries) > 5\n"
    "assert os.path.isfile(os.path.join(os.path.dirname(vlmpatch.__file__), 'inject', 'sitecustomize.py'))\n"
    "print(os.path.realpath(p.__file__))\n"
)
COUNT = (
    "import vlmpatch.catalog.read as c, vlmpatch.catalog.location as i, vlmpatch.tools.cases as s\n"
    "print(len(s.read(c.read(i.default_path())).known))\n"
)


BARE = "import sys, vlmpatch_lab.run; print('vlmpatch' in sys.modules)"
REVISIONS = (
    "import vlmpatch.catalog.read as c, vlmpatch.catalog.location as i, vlmpatch.lockfile.recorded as r\n"
    "r.Revisions.of = None  # none of them is computed\n"
    "known = c.read(i.default_path()); installed = r.Installed(known.patches)\n"
    "print({len(installed.of(entry.module)) for entry in known.entries.values()})\n"
)


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = completed(
        [str(word) for word in command],
        cwd=cwd,
        env={**env, **environ},
        limit=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked kind of files, copied: building must not write into the checkout."""
    folder = tmp_path_factory.mktemp("source") / "vlmpatch"
    folder.mkdir()
    for name in ("vlmpatch", "vlmpatch_lab", "patches", "failures", "cases", "data", "docs/zh-CN/patches"):
        shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("compat.toml", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(source: Path) -> dict[str, Path]:
    """An sdist, and the wheel made from it."""
    run(sys.executable, "-m", "build", "--no-isolation", cwd=source)
    return {path.suffix: path for path in (source / "dist").iterdir()}


def interpreter(folder: Path, *what: str | Path) -> Path:
    run(sys.executable, "-m", "uv", "venv", "--python", sys.executable, folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "uv", "pip", "install", "--python", python, *what, cwd=folder.parent)
    return python


def test_wheel_from_sdist(built: dict[str, Path], tmp_path: Path) -> None:
    python = interpreter(tmp_path / "env", built[".whl"])
    found = Path(run(python, "-c", PROBE, cwd=tmp_path))
    packages = (tmp_path / "env").resolve() / "lib" / found.parts[-6] / "site-packages"
    assert found.parent == packages / "vlmpatch/patches/transformers"
    assert "torch-checkpoint-default" in run(python, "-m", "vlmpatch", "list", cwd=tmp_path)
    assert "zero3-recompute-release" in run(python, "-m", "vlmpatch", "explain", "F4", cwd=tmp_path)
    assert run(python, "-m", "vlmpatch", "explain", "l05", cwd=tmp_path).startswith("L05 · ")
    chinese = run(python, "-m", "vlmpatch", "explain", "vision-input-grads", "--lang", "zh", cwd=tmp_path)
    assert "\n\u4e0a\u6e38\uff1a" in chinese  # what its file tells, to its last paragraph
    assert int(run(python, "-c", COUNT, cwd=tmp_path)) == len(rows.every())
    assert run(python, "-c", REVISIONS, cwd=tmp_path) == "{12}"
    assert run(python, "-c", BARE, cwd=tmp_path, PYTHONPATH=str(packages / "vlmpatch/_lab")) == "False"
    listed = run(sys.executable, "-m", "uv", "pip", "list", "--python", python, cwd=tmp_path)
    installed = {line.split()[0] for line in listed.splitlines()[2:]}
    of_rich = {"rich", "markdown-it-py", "mdurl", "pygments", "typing-extensions"}
    assert installed <= {"vlmpatch", "packaging", "tomli", "wrapt", *of_rich}


def test_the_wheel_holds_nothing_else(built: dict[str, Path]) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(built[".whl"]).namelist()}
    assert tops == {"vlmpatch", next(top for top in tops if top.endswith(".dist-info"))}


def test_editable_install_is_live(source: Path, tmp_path: Path) -> None:
    python = interpreter(tmp_path / "env", "--editable", source)
    found = Path(run(python, "-c", PROBE, cwd=tmp_path))
    assert found == (source / "patches" / "transformers" / "vision_input_grads.py").resolve()
    with found.open("a") as handle:
        handle.write("\nLIVE = True\n")
    probe = "import vlmpatch.patches.transformers.vision_input_grads as p; print(p.LIVE)"
    assert run(python, "-c", probe, cwd=tmp_path) == "True"


def test_bare_checkout_on_the_path(tmp_path: Path) -> None:
    found = Path(run(sys.executable, "-c", PROBE, cwd=tmp_path, PYTHONPATH=str(CHECKOUT)))
    assert found == CHECKOUT / "patches" / "transformers" / "vision_input_grads.py"


def test_run_from_a_wheel_reaches_workers(built: dict[str, Path], tmp_path: Path) -> None:
    python = interpreter(tmp_path / "env", built[".whl"])
    probe = "import sys; print('vlmpatch' in sys.modules)"
    assert run(python, "-m", "vlmpatch", "run", python, "-c", probe, cwd=tmp_path) == "True"
