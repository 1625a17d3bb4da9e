"""The examples of images, clusters and frameworks: read as their readers do, and run as far as that goes."""

from __future__ import annotations

import ast
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import vlmpatch
from tests.lab.launches import line
from tests.lab.waits import completed
from tests.lab.ways_in import EXAMPLES, cells, dockerfile, fake_slurm
from vlmpatch.tools import cli
from vlmpatch.tools.lint import understood
from vlmpatch.tools.lint.command import read
from vlmpatch.tools.lint.context import Around
from vlmpatch.tools.lint.rules import lint
from vlmpatch.tools.view.language import Words

INSTALLED = {"transformers": "4.57.6", "deepspeed": "0.18.2", "torch": "2.13.0"}
CHECKOUT = EXAMPLES.parent
# What doctor understands of each, and what goes wrong there without a patch.
LAUNCHES = {
    "cluster/slurm.sh": ("torchrun tiny_vl/train.py 16 DDP - - - - -", []),
    "frameworks/ms_swift.sh": ("swift - 8 DeepSpeed 2 lora on - Qwen/Qwen2-VL-2B-Instruct", ["L16"]),
    "frameworks/trl.sh": ("torchrun trl_sft.py 8 DDP - - - - Qwen/Qwen2-VL-2B-Instruct", []),
    "frameworks/llama_factory/train.sh": (
        "llamafactory-cli - - - - lora on - Qwen/Qwen2-VL-2B-Instruct",
        ["L14", "L16"],
    ),
}
SCRIPTS = sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.sh"))


@pytest.mark.parametrize("name", LAUNCHES)
def test_doctor_understands_what_is_launched(name: str) -> None:
    folder, script = os.path.split(EXAMPLES / name)
    reading = read(f"bash {script}", "the command", folder)
    (launch,) = reading.launches
    said = line(understood.of(launch)).replace(f"{folder}/", "")
    around = Around(None, INSTALLED, {}, Words("en"))
    assert (said, sorted({finding.code for finding in lint(launch, around)})) == LAUNCHES[name]
    assert reading.problems == ()


def commands() -> Iterator[tuple[str, str]]:
    """Every command of vlmpatch that an example runs, and where it stands."""
    for name in SCRIPTS:
        text = (EXAMPLES / name).read_text("utf-8").replace("\\\n", " ")
        for row in text.splitlines():
            if not row.startswith("#") and "-m vlmpatch " in row:
                yield name, row.partition("-m vlmpatch ")[2]
    for words, said in dockerfile():
        if words in ("RUN", "ENTRYPOINT"):
            shell = shlex.join(json.loads(said)) if said.startswith("[") else said
            for part in shell.split("&&"):
                if "-m vlmpatch " in part:
                    yield "Dockerfile", part.partition("-m vlmpatch ")[2]
    for container in containers().values():
        yield "kubernetes.yaml", shlex.join(container["command"]).partition("-m vlmpatch ")[2]


def containers() -> dict[str, dict[str, Any]]:
    _, job = yaml.safe_load_all((EXAMPLES / "cluster" / "kubernetes.yaml").read_text("utf-8"))
    pod = job["spec"]["template"]["spec"]
    return {each["name"]: each for each in (*pod["initContainers"], *pod["containers"])}


def test_every_command_is_one_that_there_is() -> None:
    parser, seen = cli._parser(Words("en")), set()
    for where, said in commands():
        seen.add(where)
        words = shlex.split(said.partition("|")[0].partition(">")[0])
        if words[0] != "run":
            parser.parse_args(words)
    launched = {*LAUNCHES, "Dockerfile", "kubernetes.yaml", "air-gapped/install.sh"}
    assert seen == launched


def test_the_image_is_made_of_what_is_there() -> None:
    made = list(dockerfile())
    assert [word for word, _ in made][:2] == ["ARG", "FROM"]
    known = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in made} == known
    for word, said in made:
        if word == "COPY":
            assert all((EXAMPLES / "downstream" / name).exists() for name in said.split()[:-1])


def test_the_cluster_runs_what_the_image_is() -> None:
    service, job = yaml.safe_load_all((EXAMPLES / "cluster" / "kubernetes.yaml").read_text("utf-8"))
    name, pod = job["metadata"]["name"], job["spec"]["template"]["spec"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"] == name
    assert {each["image"] for each in containers().values()} == {f"tiny-vl:{vlmpatch.__version__}"}
    mounted = {each["name"] for each in containers()["train"]["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]}
    command = containers()["train"]["command"]
    assert f"--nnodes={job['spec']['completions']}" in command
    assert f"--rdzv_endpoint={name}-0.{name}:29500" in command
    (launch,) = read(shlex.join(command), "the command", str(EXAMPLES / "downstream")).launches
    assert line(understood.of(launch)) == "torchrun tiny_vl/train.py 16 DDP - - - - -"


@pytest.mark.parametrize("name", SCRIPTS)
def test_bash_reads_every_script(name: str) -> None:
    path = EXAMPLES / name
    assert completed(["bash", "-n", str(path)], limit=10).returncode == 0
    assert path.stat().st_mode & stat.S_IXUSR
    assert "set -euo pipefail\n" in path.read_text("utf-8")


def test_llama_factory_finds_its_rows() -> None:
    folder = EXAMPLES / "frameworks" / "llama_factory"
    said = yaml.safe_load((folder / "train.yaml").read_text("utf-8"))
    rows = json.loads((folder / said["dataset_dir"] / "dataset_info.json").read_text("utf-8"))
    assert said["dataset"] in rows
    assert "use_reentrant_gc" not in said


def test_the_notebook_is_whole_and_begins_with_vlmpatch() -> None:
    book = json.loads((EXAMPLES / "notebook" / "first_look.ipynb").read_text("utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    code = cells()
    assert code[0] == "import vlmpatch"
    for source in code:
        ast.parse(source)
    stored = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert all((cell["outputs"], cell["execution_count"]) == ([], None) for cell in stored)


LAUNCHER = """#!{python}
import os, sys
said = ("launched", str("vlmpatch" in sys.modules), os.environ["VLMPATCH_LOCK"], *sys.argv[1:])
sys.stdout.write(" ".join(said) + "\\n")  # at once: two nodes share the output
"""


@pytest.fixture
def job(tmp_path: Path) -> Callable[[], subprocess.CompletedProcess[str]]:
    """Runs slurm.sh in a copy of the downstream repository, with a torch that has no code and its lock."""
    folder, own = tmp_path / "downstream", tmp_path / "site"
    shutil.copytree(EXAMPLES / "downstream", folder)
    (own / "torch").mkdir(parents=True)
    (own / "torch" / "__init__.py").write_text("")
    (own / "torch-2.13.0.dist-info").mkdir()
    (own / "torch-2.13.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.13.0\n")
    path = os.pathsep.join(map(str, (own, CHECKOUT)))
    environ = fake_slurm(tmp_path / "bin", {**os.environ, "PYTHONPATH": path})
    launcher = tmp_path / "bin" / "torchrun"
    launcher.write_text(LAUNCHER.format(python=sys.executable))
    launcher.chmod(0o755)
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    locked = completed([python, "-m", "vlmpatch", "lock"], cwd=folder, env=environ)
    assert locked.returncode == 0, locked.stderr
    script = EXAMPLES / "cluster" / "slurm.sh"
    return lambda: completed(["bash", script], cwd=folder, env=environ)


Job = Callable[[], subprocess.CompletedProcess[str]]


def test_slurm_starts_a_launcher_with_vlmpatch_on_every_node(job: Job, tmp_path: Path) -> None:
    done = job()
    assert done.returncode == 0, done.stdout + done.stderr
    digests, *launched = done.stdout.splitlines()
    assert digests.split()[0] == "2", done  # one line for both nodes
    words = "--nnodes 2 --nproc_per_node 1 --rdzv_backend c10d --rdzv_id 7 --rdzv_endpoint localhost:"
    assert len(launched) == 2
    assert all(
        each.startswith(f"launched True {tmp_path}/downstream/vlmpatch.lock {words}") for each in launched
    )


def test_slurm_starts_nothing_where_the_lock_is_another(job: Job, tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "downstream" / "vlmpatch.lock", tmp_path / "downstream")
    done = job()
    assert done.returncode != 0
    assert "launched" not in done.stdout
