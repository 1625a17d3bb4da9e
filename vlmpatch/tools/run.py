"""``python -m vlmpatch run CMD…``: vlmpatch active in every Python process below a command.

The only trace is PYTHONPATH in the environment of that command, which launchers hand on to their
workers (multi-node ``deepspeed`` too: it passes on names that begin with PYTHON).
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

from vlmpatch.catalog.location import PACKAGE
from vlmpatch.tools.view.language import Words

INJECT = os.path.join(PACKAGE, "inject")


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` with the folder of our ``sitecustomize`` first on PYTHONPATH, once.

    An empty entry is the current folder, and stays; an empty variable has no entries at all.
    """
    entries = environ["PYTHONPATH"].split(os.pathsep) if environ.get("PYTHONPATH") else []
    rest = [entry for entry in entries if entry != INJECT]
    return {**environ, "PYTHONPATH": os.pathsep.join([INJECT, *rest])}


def run(command: list[str], say: Words | None = None) -> int:
    """Run ``command`` with vlmpatch in it; on POSIX this process becomes the command.

    Args:
        command: its words.
        say: the language in which to say why it does not run.

    Returns:
        The exit code; 127 when there is no such command, 126 when it cannot be executed.
    """
    say = say or Words("en")
    program = shutil.which(command[0])
    if program is None:
        words = say("{name}: no such command. {hint}", name=command[0], hint=_hint(command[0], say))
        print(f"vlmpatch run: {words}", file=sys.stderr)
        return 127
    if reason := deaf(command, program):
        print(f"vlmpatch run: {say('inactive: {reason}', reason=say.told(reason))}", file=sys.stderr)
    sys.stdout.flush()
    try:
        if os.name == "posix":
            os.execve(program, command, environment(os.environ))
        return subprocess.run(command, executable=program, env=environment(os.environ)).returncode
    except OSError as error:
        words = say("{name} cannot be executed: {why}", name=program, why=error.strerror)
        print(f"vlmpatch run: {words}", file=sys.stderr)
        return 126


def deaf(command: list[str], program: str, inject: str = INJECT) -> str | None:
    """Why no Python of ``command`` will see PYTHONPATH, as far as its words and its first line tell.

    Args:
        command: the words of the command.
        program: the file its first word names.
        inject: the folder that goes on PYTHONPATH.
    """
    if os.pathsep in inject:
        return f"{inject} holds a {os.pathsep!r}, which PYTHONPATH cannot; install vlmpatch elsewhere"
    words = [*_first_line(program), *command] if _first_line(program) else list(command)
    if os.path.basename(words[0]) == "env":
        cleared = next((word for word in words[1:] if word in ("-", "-i", "--ignore-environment")), None)
        if cleared:
            return f"`env {cleared}` drops PYTHONPATH; put it before `python -m vlmpatch run`"
        words = list(itertools.dropwhile(lambda word: word.startswith("-") or "=" in word, words[1:]))
    if words and os.path.basename(words[0]).startswith(("python", "pypy")):
        deafening = [flag for flag in _flags(words[1:]) if flag in "IES"]
        if deafening:
            return f"`python -{deafening[0]}` looks for no sitecustomize; leave it out, or import vlmpatch"
    return None


def _flags(words: list[str]) -> str:
    """The single-letter options before a script, -c or -m."""
    flags = ""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word == "-":
            break
        if word.startswith("--"):
            continue
        taking = next((index for index, letter in enumerate(word) if letter in "cmWX"), len(word))
        flags += word[1:taking]
        if word[taking : taking + 1] in ("c", "m"):
            break
        if taking == len(word) - 1:
            next(rest, None)
    return flags


def _first_line(program: str) -> list[str]:
    try:
        with open(program, "rb") as file:
            line = file.readline(500)
    except OSError:
        return []
    return line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []


def _hint(program: str, say: Words) -> str:
    if program.endswith(".py") and os.path.exists(program):
        return say("For a script: python -m vlmpatch run python {script}", script=program)
    return say("Write the command as you would without vlmpatch: python -m vlmpatch run torchrun …")
