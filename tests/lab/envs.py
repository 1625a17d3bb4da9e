"""Pinned environments of real stacks, made once and kept outside the clone.

``python -m tests.lab.envs make tf457-ds0182`` builds one from ``tests/stacks/``;
``python -m tests.lab.envs list`` says which exist. An environment's folder name carries a hash of
everything that decides its content, so a changed pin never meets a stale folder, and a folder
without its ``complete`` marker (an interrupted build) is made again.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
SHIMS = HERE / "shims"
STACKS = HERE.parent / "stacks"
PINS = STACKS / "pins"  # what python -m tests.lab.pins wrote
NEWEST = "tf524-ds0198"  # the stack of the newest of each


@dataclass(frozen=True)
class Stack:
    """One pinned environment: ``packages`` resolve normally, ``no_deps`` are installed alone."""

    name: str
    about: str
    torch: str
    packages: tuple[str, ...]
    no_deps: tuple[str, ...]
    wanted_python: str = ""  # "3.10"; the running one where that is not installed
    matrix: bool = True  # whether it is a column of the matrix

    @property
    def folder(self) -> Path:
        shims = {p.name: p.read_text() for p in sorted(SHIMS.iterdir()) if p.is_file()}
        key = json.dumps([self.torch, self.packages, self.no_deps, shims, interpreter(self.wanted_python)[1]])
        digest = hashlib.sha256(key.encode()).hexdigest()[:10]
        return cache_root() / f"{self.name}-{digest}"

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def complete(self) -> bool:
        return (self.folder / "complete").is_file()


def cache_root() -> Path:
    """Where environments, tiny checkpoints and compiled extensions live: never inside the clone."""
    if named := os.environ.get("VLMPATCH_LAB"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "vlmpatch-lab"


def read_stacks(folder: Path = STACKS) -> dict[str, Stack]:
    """Every stack of ``folder``, the oldest first; its own pin replaces the common one of that package."""
    common = tomllib.loads((folder / "common.toml").read_text(encoding="utf-8"))
    files = [path for path in folder.glob("*.toml") if path.stem != "common"]
    stacks = [_stack(path.stem, tomllib.loads(path.read_text(encoding="utf-8")), common) for path in files]
    return {stack.name: stack for stack in sorted(stacks, key=lambda stack: _age(stack, common["torch"]))}


def _stack(name: str, entry: dict[str, Any], common: dict[str, Any]) -> Stack:
    own = {_distribution(pin) for pin in entry["packages"]}
    shared = [pin for pin in common["packages"] if _distribution(pin) not in own]
    return Stack(
        name=name,
        about=entry["about"],
        torch=entry.get("torch", common["torch"]),
        packages=(*shared, *entry["packages"]),
        no_deps=tuple(entry.get("no_deps", ())),
        wanted_python=entry.get("python", ""),
        matrix=entry.get("matrix", True),
    )


def _age(stack: Stack, torch: str) -> tuple[bool, list[Version], str]:
    # Those with a torch of their own come last: they are there for it.
    pins = dict(pin.split("==") for pin in (stack.torch, *stack.packages) if "==" in pin)
    wanted = ("torch", "transformers", "deepspeed")
    return stack.torch != torch, [Version(pins[name]) for name in wanted], stack.name


@functools.cache
def interpreter(version: str) -> tuple[str, list[int]]:
    """The program that is Python ``version`` and its version; the running one where there is no such."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    named = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
    programs = [program for program in named if program] if version else []
    for program in programs:
        done = subprocess.run(
            [str(program), "-c", "import sys; print(sys.executable)"], capture_output=True, text=True
        )
        if done.returncode == 0:  # else a launcher (pyenv's) without that version behind it
            return done.stdout.strip(), [int(part) for part in version.split(".")]
    return sys.executable, list(sys.version_info[:2])


def make(stack: Stack) -> Path:
    """Build ``stack`` unless it is there already; returns its interpreter."""
    with locked(cache_root() / f"{stack.name}.lock"):
        if not stack.complete:
            shutil.rmtree(stack.folder, ignore_errors=True)
            _build(stack)
            (stack.folder / "complete").touch()
    return stack.python


def _build(stack: Stack) -> None:
    started = time.monotonic()
    print(f"[{stack.name}] {stack.about}: making {stack.folder}", flush=True)
    program, version = interpreter(stack.wanted_python)
    if stack.wanted_python not in ("", ".".join(map(str, version))):
        print(f"[{stack.name}] no Python {stack.wanted_python} here: made with {program}", flush=True)
    _uv("venv", "--python", program, str(stack.folder))
    # torch goes first and stays pinned in the second call: anything that would pull another build
    # of it brings gigabytes of CUDA.
    _install(stack, stack.torch)
    _install(stack, stack.torch, *stack.packages)
    if stack.no_deps:
        _install(stack, "--no-deps", *stack.no_deps)
    _add_shims(stack)
    print(f"[{stack.name}] ready after {time.monotonic() - started:.0f} s", flush=True)


def _install(stack: Stack, *what: str) -> None:
    _uv(
        "pip",
        "install",
        "--python",
        str(stack.python),
        "--compile-bytecode",
        *sources(),
        *_pinned(stack),
        *what,
    )


def sources() -> list[str]:
    """Where torch comes from: the wheels pip was told of, else PyTorch's own CPU index."""
    if links := os.environ.get("PIP_FIND_LINKS"):
        return [arg for link in links.split() for arg in ("--find-links", link)]
    return ["--torch-backend", "cpu"]


def _pinned(stack: Stack) -> list[str]:
    """The versions on record for this Python and platform, but torch's own: its builds differ by machine."""
    record = PINS / f"{stack.name}.txt"
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else [""]
    version = ".".join(map(str, interpreter(stack.wanted_python)[1]))
    if not re.match(rf"# Python {re.escape(version)}\.\d+, {sys.platform} {platform.machine()};", lines[0]):
        return []
    kept = [line.partition(" ")[0] for line in lines[1:] if not line.startswith("torch==")]
    constraints = cache_root() / f"{stack.name}.constraints.txt"
    constraints.write_text("".join(f"{each}\n" for each in kept))
    return ["--constraint", str(constraints)]


def _uv(*args: str) -> None:
    env = {**os.environ, "DS_BUILD_OPS": "0", "UV_NO_PROGRESS": "1"}
    command = [sys.executable, "-m", "uv", "--quiet", *args]
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}")


def _add_shims(stack: Stack) -> None:
    """Copy the CPU shims in, with a ``.pth`` line each, so that they run before any user code."""
    site = next((stack.folder / "lib").glob("python*")) / "site-packages"
    for shim in SHIMS.glob("*.py"):
        if shim.stem.endswith("_torchvision") and _imports(stack, "torchvision"):
            continue  # a compiled half that fits this torch declares its operators itself
        shutil.copy(shim, site / shim.name)
        (site / f"{shim.stem}.pth").write_text(f"import {shim.stem}\n")


def _imports(stack: Stack, module: str) -> bool:
    tried = subprocess.run([stack.python, "-c", f"import {module}"], capture_output=True, check=False)
    return tried.returncode == 0


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock ends with its holder, however that ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _distribution(requirement: str) -> str:
    name = requirement
    for stop in "=<>!~[ ;":
        name = name.split(stop)[0]
    return name.lower().replace("_", "-")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.envs")
    parser.add_argument("verb", choices=["make", "list", "python"])
    parser.add_argument("names", nargs="*", help="stacks; all of them when none is named")
    asked = parser.parse_args()
    stacks = read_stacks()
    unknown = [name for name in asked.names if name not in stacks]
    if unknown:
        parser.error(f"no such stack: {', '.join(unknown)}; known: {', '.join(stacks)}")
    for name in asked.names or list(stacks):
        stack = stacks[name]
        if asked.verb == "make":
            print(make(stack))
        elif asked.verb == "python":
            print(stack.python)
        else:
            print(f"{'made ' if stack.complete else '-    '} {name:16} {stack.about}")


if __name__ == "__main__":
    main()
