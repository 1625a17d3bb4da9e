"""What the machine must have before anything is made on it, said in the first second.

``python3 -m tests.lab.machine STACK …``: exit status 1, and the command that installs it, where something is
missing for those stacks. Runs on any Python from 3.6 on, before there is an environment; so nothing here is
annotated with what those do not know.
"""

import os
import re
import shutil
import sys

WITHOUT_NUMACTL = (0, 16, 9)  # the first DeepSpeed here that counts a machine's CPUs without that program
PYTHON = (3, 10)
OWN = 0.3  # GB of .venv and the tiny checkpoints
EACH = 1.4  # GB of a stack whose torch is a CPU build
CUDA = 6.0  # GB of one that pins another torch, of which the registry has a build with CUDA's libraries alone
PINS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "stacks")


def cache_root():
    # type: () -> str
    """Where the stacks lie: ``tests.lab.envs.cache_root``, which an old Python cannot import."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("VLMPATCH_LAB") or os.path.join(base, "vlmpatch-lab")


def pins():
    # type: () -> dict[str, str]
    """What each stack pins; read as text, for an old Python reads no TOML."""
    found = {}
    for name in os.listdir(PINS):
        stack, ending = os.path.splitext(name)
        if ending == ".toml" and stack != "common":
            with open(os.path.join(PINS, name), "rb") as handle:
                found[stack] = handle.read().decode("utf-8")
    return found


def with_cuda():
    # type: () -> set[str]
    """The stacks that pin a torch of their own."""
    return {stack for stack, text in pins().items() if "\ntorch = " in text}


def with_numactl():
    # type: () -> set[str]
    """The stacks whose DeepSpeed runs ``numactl`` to count a machine's CPUs, and ends without it."""
    released = {stack: re.search(r"deepspeed==(\d+)\.(\d+)\.(\d+)", text) for stack, text in pins().items()}
    return {
        stack
        for stack, version in released.items()
        if version and tuple(map(int, version.groups())) < WITHOUT_NUMACTL
    }


def gigabytes(stacks, cache):
    # type: (list[str], str) -> float
    """What those of ``stacks`` take that are not in ``cache`` yet."""
    made = os.listdir(cache) if os.path.isdir(cache) else []
    complete = {
        name.rpartition("-")[0] for name in made if os.path.exists(os.path.join(cache, name, "complete"))
    }
    large = with_cuda()
    return OWN + sum(CUDA if stack in large else EACH for stack in stacks if stack not in complete)


def missing(stacks, cache):
    # type: (list[str], str) -> list[str]
    """What is missing, a line each, with the command that fixes it."""
    found = []
    if sys.version_info < PYTHON:
        mine = ".".join(map(str, sys.version_info[:2]))
        found.append(f"Python {mine} is too old, 3.10 or newer is needed: make PYTHON=python3.11 demo")
    if with_numactl().intersection(stacks) and shutil.which("numactl") is None:
        found.append("numactl not found (DeepSpeed before 0.16.9 asks for it): apt-get install -y numactl")
    folder = cache
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    free, wanted = shutil.disk_usage(folder).free / 1e9, gigabytes(stacks, cache)
    if free < wanted:
        found.append(
            f"{free:.1f} GB are free in {folder}, what is to be made takes {wanted:.1f}: free some, or name "
            "another folder in VLMPATCH_LAB"
        )
    return found


def main():
    # type: () -> int
    """Print what is missing for the stacks that are named."""
    lines = missing(sys.argv[1:], cache_root())
    for line in lines:
        sys.stderr.write(f"missing: {line}\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
