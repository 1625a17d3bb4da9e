"""Two runs that start at the same moment never meet at one port."""

from __future__ import annotations

import multiprocessing
import socket
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from vlmpatch_lab import ports


@pytest.fixture(autouse=True)
def counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A counter and ports of this test's own: the suite's others go on beside it, and use theirs."""
    path = tmp_path / "last"
    monkeypatch.setattr(ports, "_last_given", lambda: path)
    monkeypatch.setattr(ports, "PORTS", range(ports.PORTS.stop, ports.PORTS.stop + 400))
    return path


def _some(_: int) -> list[int]:
    return [ports.free_port() for _ in range(50)]


def test_processes_that_ask_at_once_are_given_different_ports() -> None:
    with ProcessPoolExecutor(4, multiprocessing.get_context("fork")) as pool:
        given = [port for some in pool.map(_some, range(4)) for port in some]
    assert len(set(given)) == len(given) == 200


def test_a_port_in_use_is_passed_over() -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", port := ports.free_port()))
        used.listen()
        assert ports._next_free(str(port - 1)) != port
    assert ports._next_free(str(port - 1)) == port


@pytest.mark.parametrize("kept", ["", "garbage", "7", str(ports.PORTS.stop + 399)])
def test_a_counter_at_its_end_or_broken_starts_anew(kept: str, counter: Path) -> None:
    counter.write_text(kept)
    assert ports.free_port() in ports.PORTS
