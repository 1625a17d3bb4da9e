"""Who trains with whom, on two, three and four real ranks: what is right bare ends with the same numbers.

``docs/collectives.md`` lists what vlmpatch says to other ranks; here it is heard, with the group it went to.
The programs are ``tests.lab.together_cases``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.lab import envs, launch

STACK = "tf457-ds0182"
QUICK = ("evaluated-where-gathered-2", "child-of-a-rank-ends", "dropped-zero2", "flat-ddp")
IMAGES = "_shared.distributed.reduced_to_largest"
ORDER = "deepspeed.zero_uneven_gradients._agree"
EXPERTS = "torch.fsdp2_sparse_experts.somewhere"
TWO, PARTS, ACROSS = [[0, 1]], [[0, 1], [2, 3]], [[0, 2], [1, 3]]
# What patches say in a case, and in which groups. ``reduced_to_largest`` is how patches agree on numbers.
SAID: dict[str, dict[str, list[list[int]]]] = {
    **{f"{name}-2": {} for name in ("ensemble", "two-ddp")},
    **{name: {} for name in ("ensemble-3", "two-ddp-4", "averaged-by-hand", "sub-world-ddp")},
    "two-engines-1-2": {},
    "two-engines-1-3": {},
    "two-engines-2-2": {ORDER: TWO},
    "two-engines-2-3": {ORDER: [[0, 1, 2]]},
    "two-engines-3-2": {IMAGES: TWO},
    "two-engines-3-3": {IMAGES: [[0, 1, 2]]},
    "engines-of-parts-1": {},
    "engines-of-parts-2": {ORDER: PARTS},
    "engines-of-parts-3": {IMAGES: PARTS},
    "tensor-parallel-1": {},
    "tensor-parallel-2": {ORDER: ACROSS},
    "tensor-parallel-3": {IMAGES: ACROSS},
    "pipeline-1": {},
    "pipeline-2": {ORDER: PARTS},
    "backwards-dropped-1": {IMAGES: ACROSS},
    "backwards-dropped-2": {IMAGES: ACROSS, ORDER: ACROSS},
    "experts-under-fsdp2": {EXPERTS: TWO},
    "experts-in-replicas": {EXPERTS: [*PARTS, *ACROSS]},
    "partitioned-in-a-part": {},
    "evaluated-where-gathered-2": {IMAGES: TWO},  # in the steps before and after
    "evaluated-where-gathered-3": {IMAGES: [[0, 1, 2]]},
    "evaluated-where-persistent": {IMAGES: TWO},  # in the first step, in which all is gathered
    "evaluated-on-one-rank-0": {},
    "evaluated-on-one-rank-1": {},
    "evaluated-on-one-rank-2": {ORDER: TWO},
    "evaluated-under-ddp": {},
    "evaluated-unsharded": {IMAGES: TWO},
    "made-anew": {},
    "child-of-a-rank-ends": {},
    "collective-of-a-thread-2": {},
    "collective-of-a-thread-3": {},
    "nodes-part": {},
    **{f"{name}-{kind}": {} for name in ("dropped", "flat") for kind in ("checkpointed", "ddp", "zero1")},
    **{f"{name}-zero2": {ORDER: TWO} for name in ("dropped", "flat")},
    **{f"{name}-zero3": {} for name in ("dropped", "flat")},
}
# Wrong, or an error, without vlmpatch: what they are compared with they make themselves.
# Three ranks' sums depend on what lies beside a gradient in its bucket. In the first backward of ZeRO-2 that
# is another one than without vlmpatch: the order in which gradients come is not known before.
ROUNDED = ("two-engines-2-3",)
PATCHED_ONLY = ("backwards-dropped-1", "backwards-dropped-2", "partitioned-in-a-part")
Found = Callable[[bool, str], dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Found:
    """What the ranks of a case did; the cases of this run share one process, bare and patched one each."""
    asked = {case for item in request.session.items if (case := _case_of(item))}

    @functools.cache
    def perform(patched: bool) -> dict[str, Any]:
        cases = sorted(asked - set(() if patched else PATCHED_ONLY))
        return run(cases, tmp_path_factory.mktemp("ranks"), patched)

    return lambda patched, case: perform(patched)[case]


def _case_of(item: Any) -> str:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return str(parameters.get("case", "")) if item.path == Path(__file__) else ""


def run(cases: Sequence[str], out: Path, patched: bool) -> dict[str, Any]:
    stack = envs.read_stacks()[STACK]
    envs.make(stack)
    command: list[str | Path] = ["python", "-m", "tests.lab.together", "--out", out, *cases]
    finished = launch.run(stack, [*command, *(["--patched"] if patched else [])], limit=60 + 30 * len(cases))
    assert finished.rc == 0, str(finished)
    lines = [line for line in finished.output.splitlines() if line.startswith('{"case"')]
    return {report["case"]: report for report in map(json.loads, lines)}


def numbers(report: dict[str, Any]) -> list[Any]:
    assert report["codes"] == [0] * len(report["ranks"]), report
    return [rank["numbers"] for rank in report["ranks"]]


def check_same(found: Any, right: Any) -> None:
    assert found == right


def check_rounded(found: Any, right: Any) -> None:
    """But for the digests of weights."""
    if isinstance(right, list):
        for one, other in zip(found, right, strict=True):
            check_rounded(one, other)
    elif not isinstance(right, str):
        assert found == pytest.approx(right, rel=1e-6)


def check_flat(found: Any, right: Any) -> None:
    """DeepSpeed lets several objects a step grow, and not always as many; a leak is one a step at least."""
    for (blocks, size), (blocks_bare, size_bare) in zip(found, right, strict=True):
        assert blocks < blocks_bare + 1, "blocks of memory a step"
        assert size < 1.5 * size_bare + 256, "bytes a step"


def check_dropped(found: Any, right: Any) -> None:
    """DeepSpeed keeps some of what it was given, and not always the same; vlmpatch keeps nothing besides."""
    for after, bare in zip(found, right, strict=True):
        assert {name for each in after for name in each} <= {name for each in bare for name in each}


CHECKS = {"flat": check_flat, "dropped": check_dropped}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in SAID]
)
def test_ranks_end_with_the_same_numbers_and_hear_what_is_listed(found: Found, case: str) -> None:
    patched = found(True, case)
    if case not in PATCHED_ONLY:
        check = CHECKS.get(case.partition("-")[0], check_rounded if case in ROUNDED else check_same)
        check(numbers(patched), numbers(found(False, case)))
    assert numbers(patched)
    heard: dict[str, set[tuple[int, ...]]] = {}
    for by, group in (said for rank in patched["ranks"] for said in rank["said"]):
        heard.setdefault(by, set()).add(tuple(group))
    assert {by: sorted(map(list, ranks)) for by, ranks in heard.items()} == {
        by: sorted(ranks) for by, ranks in SAID[case].items()
    }


def test_every_program_is_among_them() -> None:
    text = Path(__file__).parents[1].joinpath("lab", "together_cases.py").read_text("utf-8")
    defined = {line[4:].partition("(")[0].replace("_", "-") for line in _cases(text)}
    assert {name for name in defined if not any(case.startswith(name) for case in SAID)} == set()


def _cases(text: str) -> list[str]:
    lines = text.splitlines()
    return [
        lines[number + 1]
        for number, line in enumerate(lines[:-1])
        if line.startswith("@case") and "def " in lines[number + 1]
    ]
