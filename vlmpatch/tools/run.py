"""``python -m vlmpatch run CMD…``: vlmpatch active in every Python process below a command.

The only trace is PYTHONPATH in the environment of that command, which launchers hand on to their
workers (multi-node ``deepspeed`` too: it passes on names that begin with PYTHON).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

INJECT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "inject")


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` with the folder of our ``sitecustomize`` first on PYTHONPATH, once."""
    rest = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != INJECT]
    return {**environ, "PYTHONPATH": os.pathsep.join([INJECT, *rest])}


def run(command: list[str]) -> int:
    """Run ``command`` with vlmpatch in it; on POSIX this process becomes the command.

    Returns:
        The exit code; 127 when there is no such command, 126 when it cannot be executed.
    """
    program = shutil.which(command[0])
    if program is None:
        print(f"vlmpatch run: {command[0]}: no such command. {_hint(command[0])}", file=sys.stderr)
        return 127
    sys.stdout.flush()
    try:
        if os.name == "posix":
            os.execve(program, command, environment(os.environ))
        return subprocess.run(command, executable=program, env=environment(os.environ)).returncode
    except OSError as error:
        print(f"vlmpatch run: {program} cannot be executed: {error.strerror}", file=sys.stderr)
        return 126


def _hint(program: str) -> str:
    if program.endswith(".py") and os.path.exists(program):
        return f"For a script: python -m vlmpatch run python {program}"
    return "Write the command as you would without vlmpatch: python -m vlmpatch run torchrun …"
