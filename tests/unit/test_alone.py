"""Every patch of the catalog is proven to be needed, by a run that it alone decides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e import alone, test_minicpmv
from tests.e2e.alone import PROOFS, Proof
from tests.lab import envs
from tests.matrix import rows
from tests.standin.cells import NEEDS, Trial
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read

ENTRIES = read(default_path()).entries
STACKS = envs.read_stacks()


def by_the_script() -> Iterator[str]:
    """Patches that a run of MiniCPM-V's script lacks, in a test that sees it fail."""
    yield from (need.patch for need in NEEDS)
    for test in vars(test_minicpmv).values():
        for mark in getattr(test, "pytestmark", ()):
            for trial in mark.args[1] if mark.name == "parametrize" else ():
                yield from trial.cell.without if isinstance(trial, Trial) else ()


def test_every_patch_is_proven_alone() -> None:
    proven = {*(proof.patch for proof in PROOFS), *by_the_script()}
    assert sorted(ENTRIES.keys() - proven) == []
    assert sorted(proven - ENTRIES.keys()) == []


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: proof.id)
def test_a_proof_runs_where_the_gate_is_open(proof: Proof) -> None:
    assert proof.how in alone.HOW
    assert rows.holds(ENTRIES[proof.patch].requires, rows.versions(STACKS[proof.stack]))
    assert not alone.fits(proof.without, alone.RIGHT)


def test_a_patch_is_named_once() -> None:
    patches = [proof.patch for proof in PROOFS]
    assert len(patches) == len(set(patches))
    assert alone.LEAST in patches
