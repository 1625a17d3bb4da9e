"""What worker processes do, by whichever way they were started; importable by those that begin anew."""

from __future__ import annotations

import importlib
import itertools
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from vlmpatch.catalog import environment
from vlmpatch.catalog.read import read
from vlmpatch.engine.engine import Engine


def start(folder: str) -> Engine:
    """vlmpatch with the catalog and the patches of ``folder``, unless this process was born with them."""
    if born:
        return born[0]
    patches = importlib.import_module("vlmpatch.patches")
    patches.__path__ = [*patches.__path__, str(Path(folder, "patches"))]
    known = read(str(Path(folder, "compat.toml")))
    engine = Engine(known, environment.read({}, known.entries))
    engine.arm()
    return engine


def greeting(package: str) -> str:
    """What a patched function says now."""
    said: str = importlib.import_module(package).greet("you")
    return said


def look(package: str, folder: str, answer: Connection) -> None:
    """Say what is there, undo it, say what is there then."""
    engine = start(folder)
    states = [status.state.value for status in engine.status().values()]
    found = [greeting(package), *states]
    engine.undo([])
    answer.send([*found, greeting(package)])


def churn(package: str, folder: str, answer: Connection) -> None:
    """Undo, redo and import for ever; killed at some moment."""
    engine = start(folder)
    for number in itertools.count():
        if number == 1:
            answer.send("begun")
        engine.undo([])
        engine.redo([])
        with engine.disabled([]):
            importlib.reload(sys.modules[package]) if package in sys.modules else greeting(package)


born: list[Engine] = []  # the engine of the process that forks
