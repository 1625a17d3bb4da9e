"""The examples of images, clusters and frameworks, on real stacks."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.lab import envs, launch
from tests.lab.envs import Stack
from tests.lab.launch import Finished
from tests.lab.ways_in import EXAMPLES, cells, dockerfile, fake_slurm
from vlmpatch_lab.ports import free_port

pytestmark = pytest.mark.slow
FRAMEWORKS = EXAMPLES / "frameworks"
ON_CPU = """
    --torch_dtype float32 --fp16 false --bf16 false --logging_steps 1 --split_dataset_ratio 0 --report_to none
"""  # what the example leaves to a GPU


def made(name: str) -> Stack:
    stack = envs.read_stacks()[name]
    envs.make(stack)
    return stack


def run(
    stack: Stack, words: list[str | Path], cwd: Path, env: Mapping[str, str] | None = None, gloo: bool = False
) -> Finished:
    return launch.run(stack, words, limit=300, cwd=cwd, gloo=gloo, env=env)


def asked(model: Path) -> dict[str, str]:
    """What a framework's example is told of the model and its data."""
    data = str(model / "data" / "sft.jsonl")
    return {"MODEL": str(model), "DATA": data, "NPROC_PER_NODE": "2", "OUTPUT": "out"}


@pytest.fixture
def downstream(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLES / "downstream", tmp_path / "downstream"))


def test_two_nodes_of_slurm_train(downstream: Path, tmp_path: Path) -> None:
    stack = made("tf457-ds0182")
    job = fake_slurm(tmp_path / "bin", {"PATH": launch.environment(stack)["PATH"]})
    done = run(stack, ["bash", EXAMPLES / "cluster" / "slurm.sh"], downstream, job)
    assert done.rc == 0, done
    assert re.search(r"^ *2 [0-9a-f]{12} vlmpatch=", done.output, re.M), done
    assert (downstream / "out" / "model.safetensors").exists()


def test_the_image_is_checked_and_trains(downstream: Path, tmp_path: Path) -> None:
    """Its steps after the installation, in the stack that its requirements name."""
    said = dict(dockerfile())
    stack, out = made("tf457-ds0182"), tmp_path / "out"
    assert "vlmpatch lock --diff" in said["RUN"]  # the last of them
    checked = run(stack, ["bash", "-c", said["RUN"]], downstream)
    assert checked.rc == 0, checked
    words = [*json.loads(said["ENTRYPOINT"]), *json.loads(said["CMD"])]
    words = [str(out) if word == "/out" else "2" if word == "gpu" else word for word in words]
    pairs = shlex.split(said["ENV"].replace("/srv/tiny-vl", str(downstream)))
    words.insert(words.index("-m", 2), f"--master_port={free_port()}")
    trained = run(stack, list(words), downstream, dict(pair.split("=", 1) for pair in pairs))
    assert trained.rc == 0, trained
    assert (out / "model.safetensors").exists()


def builder() -> list[str]:
    """The command that builds an image here, without its arguments; empty where none can."""
    if shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True).returncode == 0:
        return ["docker", "build"]
    return ["buildah", "bud", "--isolation", "chroot"] if shutil.which("buildah") else []


def test_the_image_is_built(downstream: Path) -> None:
    """On an image with the stack of the requirements, and with an index that has this vlmpatch."""
    image, command = os.environ.get("VLMPATCH_LAB_IMAGE"), builder()
    if not image:
        pytest.skip("VLMPATCH_LAB_IMAGE names no image with torch to build upon")
    if not command:
        pytest.skip("neither a docker with its daemon nor buildah is here")
    file = EXAMPLES / "cluster" / "Dockerfile"
    subprocess.run([*command, "--build-arg", f"BASE={image}", "-f", file, downstream], check=True)


def test_the_notebook_runs_cell_by_cell(tmp_path: Path) -> None:
    script = tmp_path / "cells.py"
    script.write_text("\n".join(cells()))
    done = run(made("tf457-ds0182"), ["python", script], tmp_path)
    assert done.rc == 0, done
    without, trained = re.findall(r"^with(?:out)? vlmpatch: \((\d+), (\d+)\)$", done.output, re.M)
    assert int(without[0]) < int(without[1])
    assert trained[0] == trained[1] == without[1]


def test_trl_trains_as_its_example_says(tmp_path: Path) -> None:
    stack = made("trl024")
    model = launch.checkpoint(stack, "qwen2_vl")
    env = asked(model)
    words: list[str | Path] = ["bash", FRAMEWORKS / "trl.sh", "--max_steps", "2"]
    done = run(stack, words, tmp_path, env)
    assert done.rc == 0, done
    assert len(re.findall(r"'loss': ", done.output)) == 2, done


def test_ms_swift_trains_as_its_example_says(tmp_path: Path) -> None:
    stack = made("swift460")
    model = launch.checkpoint(stack, "qwen2_vl")
    env = asked(model)
    words: list[str | Path] = ["bash", FRAMEWORKS / "ms_swift.sh", "--max_steps", "2", *ON_CPU.split()]
    done = run(stack, words, tmp_path, env, gloo=True)
    assert done.rc == 0, done
    assert len(re.findall(r"'loss': ", done.output)) >= 2, done


def test_a_wheelhouse_is_all_that_is_wanted(tmp_path: Path) -> None:
    """Fetched with a network, checked, and installed without one; a file that was changed is refused."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), "."]
    subprocess.run(build, cwd=launch.ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    house, offline = tmp_path / "house", {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}

    def said(script: str, *words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        kept["PATH"] = f"{tmp_path / 'env' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        command = ["bash", str(EXAMPLES / "air-gapped" / script), *map(str, words)]
        return subprocess.run(command, env={**kept, **env}, cwd=tmp_path, capture_output=True, text=True)

    subprocess.run([sys.executable, "-m", "uv", "venv", "--seed", tmp_path / "env"], check=True)
    assert (done := said("fetch.sh", house, wheel)).returncode == 0, done.stderr
    assert {path.name.partition("-")[0] for path in house.glob("*.whl")} >= {"vlmpatch", "packaging", "wrapt"}
    assert (done := said("install.sh", house, **offline)).returncode == 0, done.stdout + done.stderr
    with next(house.glob("wrapt*")).open("ab") as handle:
        handle.write(b"x")
    assert said("install.sh", house, **offline).returncode != 0
