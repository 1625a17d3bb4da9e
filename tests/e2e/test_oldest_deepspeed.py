"""DeepSpeed 0.12.6, which LLaVA pins: each patch whose gate begins there is right and needed on it.

Nothing is said here of the patches whose gates begin later.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.e2e import alone
from tests.e2e.alone import Proof
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read

pytestmark = pytest.mark.slow
STACK = "tf445-ds0126"
OLDEST = {
    entry.id
    for entry in read(default_path()).entries.values()
    if entry.requires.get("deepspeed", "").startswith(">=0.12.6")
}
PROOFS = [
    dataclasses.replace(proof, stack=STACK)
    for proof in alone.proofs()
    if proof.patch in OLDEST and proof.case.how != "script"
]


def test_each_has_a_proof() -> None:
    assert {proof.patch for proof in PROOFS} == OLDEST


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: str(proof.patch))
def test_right_and_not_without_the_patch(proof: Proof, tmp_path: Path) -> None:
    case = proof.case
    ending = alone.perform([proof], tmp_path / "all")[case.id]
    assert alone.with_all(case, ending), str(ending)
    lacking = alone.perform([proof], tmp_path / "without", without=[proof.patch])[case.id]
    assert alone.without(case, lacking), str(lacking)
