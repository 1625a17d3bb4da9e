"""Each patch by itself: what is right with all of them fails without this one (``alone.py`` runs it).

What MiniCPM-V's script needs is proven in ``test_minicpmv.py``, one process a stack.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e import alone
from tests.e2e.alone import Endings, Proof
from tests.matrix.judge import Outcome

WithAll = Callable[[Proof], Outcome]


def _parameters() -> list[object]:
    return [pytest.param(proof, id=proof.id) for proof in alone.proofs() if proof.case.how != "script"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("alone")


@pytest.fixture(scope="module")
def with_all(request: pytest.FixtureRequest, place: Path) -> WithAll:
    """How a proof's run ends with every patch; those that were collected and can share a process do."""
    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    found = (item.callspec.params.get("proof") for item in items if hasattr(item, "callspec"))
    collected = alone.groups(proof for proof in found if isinstance(proof, Proof))

    @functools.cache
    def of_group(number: int) -> Endings:
        return alone.perform(collected[number], place / str(number) / "all")

    def ending(proof: Proof) -> Outcome:
        number = next(number for number, group in enumerate(collected) if proof in group)
        return of_group(number)[proof.case.id]

    return ending


def test_a_few_are_right_and_not_without_their_patches(place: Path) -> None:
    """Without all of them at once, as none ends the failure of another."""
    few = [each for each in alone.proofs() if each.patch in alone.QUICK and each.stack == alone.QUICK_STACK]
    assert {proof.patch for proof in few} == set(alone.QUICK)
    right = alone.perform(few, place / "few" / "all")
    lacking = alone.perform(few, place / "few" / "without", without=alone.QUICK)
    for case in (proof.case for proof in few):
        assert alone.with_all(case, right[case.id]), f"{case.id}: {right[case.id]}"
        assert alone.without(case, lacking[case.id]), f"{case.id} without: {lacking[case.id]}"


@pytest.mark.slow
@pytest.mark.parametrize("proof", _parameters())
def test_right_with_every_patch_and_not_without_this_one(
    proof: Proof, with_all: WithAll, place: Path
) -> None:
    ending = with_all(proof)
    assert alone.with_all(proof.case, ending), str(ending)
    lacking = alone.perform([proof], place / "without" / proof.patch, without=[proof.patch])[proof.case.id]
    assert alone.without(proof.case, lacking), f"without {proof.patch}: {lacking}"
