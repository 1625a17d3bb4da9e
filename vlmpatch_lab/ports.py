"""Ports for runs that must not meet each other."""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from pathlib import Path

# Below what the kernel gives to connections (from 32768 on, on Linux): a rank that connects between this
# answer and the launch's own `listen` cannot be given the same port. Past Ray's ports and torch's default.
PORTS = range(20000, 29000)


def free_port() -> int:
    """A TCP port that nobody uses at this moment, and that nobody else is given here for thousands of calls.

    Raises:
        OSError: every port of ``PORTS`` is in use.
    """
    with _last_given().open("a+") as last:
        fcntl.flock(last, fcntl.LOCK_EX)
        last.seek(0)
        port = _next_free(last.read())
        last.truncate(0)
        last.write(str(port))
    return port


def _last_given() -> Path:
    return Path(tempfile.gettempdir()) / f"vlmpatch-port-{os.getuid()}"


def _next_free(last: str) -> int:
    after = int(last) - PORTS.start + 1 if last.isdecimal() and int(last) in PORTS else 0
    for port in itertools.chain(PORTS[after:], PORTS[:after]):
        if _is_free(port):
            return port
    raise OSError(f"every TCP port from {PORTS.start} to {PORTS.stop - 1} is in use")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's store and torchrun set it
        try:
            probe.bind(("", port))  # torchrun listens on every interface
        except OSError:
            return False
    return True
