"""What tests read of ``examples/``, and a Slurm of one machine to run them under."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from vlmpatch_lab.ports import free_port

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NODES = 2
SRUN = """#!/usr/bin/env bash
# As srun does where nothing else is asked for: the command once a node, all at a time.
nodes=()
for node in $(seq "$SLURM_NNODES"); do SLURM_NODEID=$((node - 1)) "$@" & nodes+=($!); done
worst=0
for node in "${nodes[@]}"; do wait "$node" || worst=$?; done
exit $worst
"""


def dockerfile() -> Iterator[tuple[str, str]]:
    """The instructions of the example's Dockerfile, and what follows each."""
    text = (EXAMPLES / "cluster" / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, said = line.partition(" ")
            yield word, said.strip()


def cells() -> list[str]:
    """The code cells of the notebook."""
    book = json.loads((EXAMPLES / "notebook" / "first_look.ipynb").read_text("utf-8"))
    return ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]


def fake_slurm(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` of a job on two nodes that are this machine; ``srun`` and ``scontrol`` in ``folder``."""
    folder.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/sh\necho localhost\necho localhost\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    job = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NNODES": str(NODES),
        "SLURM_GPUS_ON_NODE": "1",
        "PORT": str(free_port()),
    }
    return {**environ, **job, "PATH": f"{folder}:{environ['PATH']}"}
