"""What holds for every unit test."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def catalogs_are_compiled_beside_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python writes no byte code, the index of each test's catalog would go into the user's cache."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
