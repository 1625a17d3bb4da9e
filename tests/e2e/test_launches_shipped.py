"""Each script of ``data/launches.csv`` is understood as the record says, where its repository can be had.

``VLMPATCH_SOURCES`` is a folder of clones, by name with ``+`` for ``/`` (``git clone --bare`` will do).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import launches
from tests.lab.launches import Shipped

pytestmark = pytest.mark.slow
SOURCES = Path(os.environ.get("VLMPATCH_SOURCES", ""))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Shipped], Path]:
    """A repository's files at the commit of the record, unpacked once."""
    folders: dict[tuple[str, str], Path] = {}

    def folder(shipped: Shipped) -> Path:
        place = shipped.repository, shipped.commit
        if place not in folders:
            folders[place] = tmp_path_factory.mktemp(shipped.repository.replace("/", "+"))
            launches.unpacked(launches.clone(SOURCES, shipped), shipped.commit, folders[place])
        return folders[place]

    return folder


@pytest.mark.parametrize("shipped", launches.read(), ids=lambda shipped: shipped.id)
def test_a_shipped_script_is_understood(shipped: Shipped, unpacked: Callable[[Shipped], Path]) -> None:
    if not os.environ.get("VLMPATCH_SOURCES") or not launches.clone(SOURCES, shipped).is_dir():
        pytest.skip(f"no clone of {shipped.repository} in VLMPATCH_SOURCES")
    assert launches.examined(shipped, unpacked(shipped)) == shipped
