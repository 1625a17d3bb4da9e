"""The unit tests on every Python vlmpatch supports, as far as it is installed.

``python -m tests.lab.pythons [3.12 …]`` makes an environment of test tools for each, beside those of the
stacks, and runs ``tests/unit`` in it. Exit status 1 where one fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.lab import envs

SUPPORTED = ("3.10", "3.11", "3.12", "3.13")
ROOT = Path(__file__).resolve().parents[2]


def test(version: str) -> bool | None:
    """Whether the unit tests pass on ``version``; None where it is not installed."""
    program, found = envs.interpreter(version)
    if ".".join(map(str, found)) != version:
        print(f"Python {version} is not installed here", flush=True)
        return None
    folder = envs.cache_root() / f"unit-{version}"
    python = str(folder / "bin" / "python")
    uv = [sys.executable, "-m", "uv", "--quiet"]
    with envs.locked(folder.with_suffix(".lock")):
        if not Path(python).exists():
            subprocess.run([*uv, "venv", "--python", program, str(folder)], check=True)
        subprocess.run([*uv, "pip", "install", "--python", python, "--group", "dev"], check=True, cwd=ROOT)
    print(f"Python {version}", flush=True)
    env = {**os.environ, "PYTHONPATH": ""}
    command = [python, "-m", "pytest", "-q", "-n", "2", "tests/unit"]
    return subprocess.run(command, cwd=ROOT, env=env).returncode == 0


def main() -> int:
    """Run them all; the last line says on which they passed."""
    results = {version: test(version) for version in sys.argv[1:] or SUPPORTED}
    words = {True: "passed", False: "failed", None: "not installed"}
    print("; ".join(f"Python {version} {words[result]}" for version, result in results.items()))
    return 1 if False in results.values() else 0


if __name__ == "__main__":
    sys.exit(main())
