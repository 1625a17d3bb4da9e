"""How a proof is judged; that every patch has one is asked by ``tests.complete``."""

from __future__ import annotations

import pytest

from tests.e2e import alone
from tests.e2e.alone import Proof
from tests.matrix import judge
from tests.matrix.judge import Outcome
from vlmpatch.tools.cases import RUNS, Case

PROOFS = alone.proofs()
SHOWN = Case("a", patch="p", fails="error: boom", proof=("s",))


def test_every_kind_of_run_can_be_performed() -> None:
    assert set(alone.HOW) == set(RUNS)


def test_a_case_is_proven_once_beside_what_the_script_needs() -> None:
    """Further stacks are the slow lane's; a patch with several doors has a case for each."""
    proven = [
        case for case in {proof.case.id: proof.case for proof in PROOFS}.values() if case.how != "script"
    ]
    assert [case.id for case in proven if len(case.proof) != 1] == []
    assert set(alone.QUICK) <= {case.patch for case in proven}
    assert len({proof.id + proof.case.id for proof in PROOFS}) == len(PROOFS)


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: f"{proof.id}:{proof.case.id}")
def test_a_run_cannot_end_as_it_should_both_ways(proof: Proof) -> None:
    case = proof.case
    for ending in (alone.RIGHT, Outcome("error", "another"), Outcome("error", "x", warned=case.warns)):
        assert not (alone.with_all(case, ending) and alone.without(case, ending))


def test_how_a_proof_is_judged() -> None:
    boom = Outcome("error", "RuntimeError: boom")
    assert alone.with_all(SHOWN, alone.RIGHT)
    assert alone.without(SHOWN, boom)
    assert not alone.with_all(SHOWN, boom)
    assert not alone.without(SHOWN, alone.RIGHT)
    assert not alone.without(SHOWN, Outcome("error", "out of memory"))
    assert not alone.without(SHOWN, Outcome("missing", "boom"))
    told = Case("a", patch="p", fails="error: boom", ends="error: with its cause")
    assert alone.with_all(told, Outcome("error", "boom, with its cause"))
    assert not alone.with_all(told, alone.RIGHT)
    warned = Outcome("right", warned="vlmpatch [p]: you said so, and")
    choice = Case("a", patch="p", fails="error: boom", warns="you said so")
    assert (alone.with_all(choice, warned), alone.without(choice, warned)) == (True, False)
    assert (alone.with_all(choice, boom), alone.without(choice, boom)) == (False, True)
    assert not alone.with_all(choice, alone.RIGHT), "overruled without a word"


def test_what_ends_a_proof_first_is_what_the_case_says() -> None:
    by_itself = Case("a", patch="p", fails="error", lacking="error: boom")
    assert not alone.without(by_itself, Outcome("error", "another"))
    assert judge.fits(by_itself.fails, Outcome("error", "another"))
