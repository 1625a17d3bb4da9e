"""Training programs of public repositories train with vlmpatch as DDP does without checkpointing.

``VLMPATCH_SOURCES`` is a folder of clones, by name with ``+`` for ``/`` (``git clone --bare`` will do).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shipped import programs, table
from tests.shipped.programs import REFERENCE, Ended, Program, Run, Workshop

pytestmark = pytest.mark.slow
PROGRAMS, LEFT = programs.read()
RUNS = [(program, engine) for program in PROGRAMS.values() for engine in program.engines]
Found = Callable[[Program, str, bool], Ended]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Found:
    """How a program ends under an engine, with vlmpatch or bare; those of a stack run together."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(text, file=sys.stderr, flush=True)  # of a worker of xdist, this is what is shown

    workshop = Workshop(tmp_path_factory.mktemp("shipped"), say)
    ended: dict[tuple[str, bool], dict[Run, Ended]] = {}

    def of(program: Program, engine: str, patched: bool) -> Ended:
        key = program.stack, patched
        if key not in ended:
            beside = [each for each in PROGRAMS.values() if each.stack == program.stack and clone(each)]
            runs = [(each, under) for each in beside for under in each.engines]
            references = [(each, REFERENCE) for each in beside] if patched else []
            ended[key] = workshop.run(program.stack, [*references, *runs], patched=patched)
        return ended[key][program, engine]

    return of


clone = programs.clone_of


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run[0].id}-{run[1]}")
def test_a_program_trains_as_without_checkpointing(run: Run, found: Found) -> None:
    program, engine = run
    if clone(program) is None:
        pytest.skip(f"no clone of {program.repository} in VLMPATCH_SOURCES")
    right, patched = (found(program, under, True) for under in (REFERENCE, engine))
    assert right.right, right.output[-4000:]
    assert patched.right, patched.output[-4000:]
    assert right.result
    assert patched.result
    assert programs.difference(patched.result, right.result) <= program.alike

    bare = found(program, engine, False)
    apart = table.distance(bare, right)
    trained = apart is not None and apart <= program.alike
    assert trained is (engine not in program.fails), (apart, bare.output[-4000:])
    assert set(table.warned(patched)) <= set(program.says), patched.output[-4000:]


def test_what_is_left_out_says_why() -> None:
    assert all(left.why and left.why_zh for left in LEFT)
    assert not {left.repository for left in LEFT} & {program.repository for program in PROGRAMS.values()}
    assert all(Path(programs.HERE / "standins" / name).exists() for name in ("flash_attn", "liger_kernel"))
