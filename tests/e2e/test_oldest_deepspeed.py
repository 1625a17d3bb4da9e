"""DeepSpeed 0.12.6, which LLaVA pins, and 0.14.4, which LLaVA-NeXT pins: the patches whose gates begin there.

Each is right and needed on it, where a case of it can run there; nothing is said of patches whose gates begin
later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import alone
from tests.e2e.alone import Proof
from tests.lab import envs
from tests.matrix import rows
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.model import Entry
from vlmpatch.catalog.read import read

pytestmark = pytest.mark.slow
STACKS = {"0.12.6": "tf445-ds0126", "0.14.4": "tf445-ds0144"}
# Of these every case needs what came later, as `only` says in it.
LATER = {
    "0.12.6": {"zero-overlapped-reduction", "zero-overlapped-buckets"},
    "0.14.4": {
        *("zero3-sparse-experts", "zero3-leaf-inputs", "zero3-stale-gradients"),
        *("zero-step-without-gradient", "zero3-bias-added-in-place"),
    },
}


def begins(entry: Entry, version: str) -> bool:
    """Whether its gate begins with this DeepSpeed, and is open on the stack that has it."""
    installed = rows.versions(envs.read_stacks()[STACKS[version]])
    text = entry.requires.get("deepspeed", "")
    return text.startswith(f">={version}") and rows.holds(entry.requires, installed)


OLDEST = {
    version: {entry.id for entry in read(default_path()).entries.values() if begins(entry, version)}
    for version in STACKS
}


def proofs(version: str) -> Iterator[Proof]:
    """One of each patch; MiniCPM-V's script only where there is no other."""
    stack = STACKS[version]
    installed = rows.versions(envs.read_stacks()[stack])
    every = sorted(alone.proofs(), key=lambda proof: proof.case.how != "script")
    found = {
        proof.patch: dataclasses.replace(proof, stack=stack)
        for proof in every
        if proof.patch in OLDEST[version] and rows.holds(proof.case.only, installed)
    }
    yield from found.values()


PROOFS = [proof for version in STACKS for proof in proofs(version)]


@pytest.mark.parametrize("version", STACKS)
def test_each_has_a_proof(version: str) -> None:
    proven = {proof.patch for proof in PROOFS if proof.stack == STACKS[version]}
    assert proven == OLDEST[version] - LATER.get(version, set())


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: str(proof.id))
def test_right_and_not_without_the_patch(proof: Proof, tmp_path: Path) -> None:
    case = proof.case
    ending = alone.perform([proof], tmp_path / "all")[case.id]
    assert alone.with_all(case, ending), str(ending)
    lacking = alone.perform([proof], tmp_path / "without", without=[proof.patch])[case.id]
    assert alone.without(case, lacking), str(lacking)
