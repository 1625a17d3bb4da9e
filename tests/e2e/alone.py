"""Each patch by itself: a run that is right with all of them, and what it ends in without this one.

    python -m tests.e2e.alone [PATCH ...]

prints both endings of each; ``test_alone.py`` holds them against what ``cases/`` says.

The patch is switched off as a user would, by ``VLMPATCH_DISABLE``. A patch whose run ends as well without it
has too wide a gate, or too weak a test.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.zero3_runs import Run
from tests.e2e import test_adapters as adapters
from tests.e2e import test_minicpmv_launched as minicpmv
from tests.e2e import test_mixed as mixed
from tests.e2e import test_zero3 as zero3
from tests.e2e import test_zero3_outside as outside
from tests.lab import cells, envs, launch
from tests.matrix import judge, rows, scripts
from tests.matrix.judge import Outcome
from tests.mishaps import table as mishaps
from tests.mishaps.cell import Cell as Mishap
from tests.standin.cells import Cell as Script
from vlmpatch.tools.cases import Case

RIGHT = Outcome("right")
# What `make test` proves of this page: failures that do not hide one another, on one stack, in two processes.
QUICK = (
    *("cache-in-recompute", "packed-rows-beside-a-cache", "prefix-under-checkpointing"),
    *("shared-layers-without-a-cache", "overridden-train-sampler", "trainer-trained-again"),
    *("recomputed-attention", "recomputed-torchscript", "stopped-recomputation"),
)
QUICK_STACK = "tf457-ds0182"
Env = Mapping[str, str]
Endings = dict[str, Outcome]  # of each case, by its id


@dataclass(frozen=True)
class Proof:
    """A case that needs its patch, on one stack."""

    case: Case
    stack: str

    @property
    def patch(self) -> str:
        return self.case.patch

    @property
    def id(self) -> str:
        return f"{self.stack}:{self.patch}"


def proofs() -> list[Proof]:
    """Every proof of ``cases/``."""
    every = rows.every().values()
    return [Proof(case, stack) for case in every for stack in (*case.proof, *case.slow)]


# --- how a case is run, and how it ended ---------------------------------------------------------------


def of_cells(stack: str, wanted: Sequence[Case], env: Env, out: Path) -> Endings:
    """Cells held against their measures, which run bare; those of the field measure themselves."""
    known, measures = envs.read_stacks()[stack], out.parent / "measures"
    needed = dict.fromkeys(case.cell.reference for case in wanted if case.how == "cell")
    if missing := [cell for cell in needed if not any((measures / cell.id).glob("rank*.pt"))]:
        cells.run(known, missing, measures)
    ran = cells.run(known, [case.cell for case in wanted], out, patched=True, reference=measures, env=env)
    return {case.id: judge.outcome(ran[case.cell.id], case.patch) for case in wanted}


def of_scripts(stack: str, wanted: Sequence[Case], env: Env, out: Path) -> Endings:
    """Runs of MiniCPM-V's script, which has the patches taken back before it starts."""
    off = tuple(filter(None, env["VLMPATCH_DISABLE"].split(",")))
    asked = {case: Script.of({**case.settings, "without": off}) for case in wanted}
    ran = scripts.run(envs.read_stacks()[stack], list(asked.values()), out)
    return {case.id: judge.outcome(ran[script], case.patch) for case, script in asked.items()}


def of_outside(stack: str, wanted: Sequence[Case], env: Env, out: Path) -> Endings:
    """Programs of ``tests.lab.outside``."""
    found = outside.perform(stack, [case.scenario for case in wanted], out, patched=True, env=env)
    return {case.id: outside_ending(found[case.scenario]) for case in wanted}


def outside_ending(report: dict[str, Any]) -> Outcome:
    if report["hung"]:
        return Outcome("hung", str(report["ranks"]))
    if errors := [rank["error"] for rank in report["ranks"] if "error" in rank]:
        return Outcome("error", "; ".join(errors))
    wrong = [word for rank in report["ranks"] for word in outside.wrong(rank)]
    return Outcome("difference", "; ".join(wrong)) if wrong else RIGHT


def of_mixed(stack: str, wanted: Sequence[Case], env: Env, out: Path) -> Endings:
    """Scenarios of ``mixed_ranks``."""
    names = [case.scenario for case in wanted]
    kinds = sorted({name.split(":")[1] for name in names})
    known = envs.read_stacks()[stack]
    models = launch.checkpoints(known, [kind for kind in kinds if kind != "minicpmv"])
    models |= {"minicpmv": scripts.made(known) / "model"} if "minicpmv" in kinds else {}
    found = mixed.of_scenarios(stack, models, names, out, "patched", env)
    return {case.id: _ended(*found[case.scenario]) for case in wanted}


def of_mishaps(stack: str, wanted: Sequence[Case], env: Env, out: Path) -> Endings:
    """Cells of ``tests.mishaps``, held against what is right in one process."""
    cells = [Mishap.of(case.scenario) for case in wanted]
    measures = dict.fromkeys(measure for cell in cells for measure in cell.measures)
    mishaps.bare(stack, [*measures], out)
    ran = mishaps.patched(stack, cells, out, env)
    return {case.id: _passed(cell, ran[str(cell)]) for case, cell in zip(wanted, cells, strict=True)}


def _passed(cell: Mishap, report: dict[str, Any]) -> Outcome:
    if "error" in report:
        return Outcome("error", report["error"])
    return RIGHT if mishaps.is_right(cell, report) else Outcome("difference", f"{report['off']:.2g} off")


def of_trainer(stack: str, wanted: Sequence[Case], env: Env, out: Path) -> Endings:
    """HF Trainer by torchrun on mixed data; a scenario is an engine."""
    endings = {}
    mixed.train(stack, "plain", out / "right.pt")
    for case in wanted:
        got = out / f"{case.scenario}.pt"
        ran = mixed.train(stack, case.scenario, got, "--import-vlmpatch", env=env)
        off = mixed.apart(stack, got, out / "right.pt") if ran.rc == 0 else 0.0
        endings[case.id] = _ended(ran.output[-6000:] if ran.rc else None, off)
    return endings


def _ended(error: str | None, off: float) -> Outcome:
    if error:
        return Outcome("error", error)
    return RIGHT if off <= judge.TOLERANCE else Outcome("difference", f"{off:.2g} off")


def of_gathers(stack: str, wanted: Sequence[Case], env: Env, out: Path) -> Endings:
    """Runs of ``bench.zero3_gather_ranks``; an error comes with what the ranks printed."""
    asked = {case: Run(**case.settings) for case in wanted}
    found = zero3.perform(stack, list(asked.values()), out, env)
    endings = {}
    for case, run in asked.items():
        logs = sorted((out / run.id).glob("rank*.log"))
        printed = "".join(path.read_text()[-3000:] for path in logs)
        error = found[run.id]["error"]
        endings[case.id] = Outcome("error", f"{error}\n{printed}") if error else RIGHT
    return endings


def of_adapters(stack: str, wanted: Sequence[Case], env: Env, out: Path) -> Endings:
    """An adapter of the oldest stack, loaded in one of the ways of ``tests.programs.adapters``."""
    model = launch.checkpoint(envs.read_stacks()[adapters.OLD], "qwen2_vl")
    adapters.act(adapters.OLD, "save", model, out)
    ran = {way["way"]: way for way in adapters.act(stack, "load", model, out, "--patched", env=env)}
    endings = {}
    for case in wanted:
        loaded, saved = (ran[case.scenario][key] for key in ("loaded", "saved"))
        endings[case.id] = RIGHT if loaded == saved else Outcome("difference", f"{loaded} of {saved} loaded")
    return endings


def of_swift(stack: str, wanted: Sequence[Case], env: Env, out: Path) -> Endings:
    """MiniCPM-V in ms-swift; a scenario is what it does, and under which engine."""
    made, endings = scripts.made(envs.read_stacks()[stack]), {}
    for case in wanted:
        kind, engine = case.scenario.split(":")
        ran = minicpmv.swift(kind, engine, made, out / kind, stack=stack, **dict(env)).finished
        endings[case.id] = Outcome("error", ran.output[-6000:]) if ran.rc else RIGHT
    return endings


HOW: dict[str, Callable[[str, Sequence[Case], Env, Path], Endings]] = {
    "cell": of_cells,
    "field": of_cells,
    "script": of_scripts,
    "outside": of_outside,
    "mixed": of_mixed,
    "mishap": of_mishaps,
    "trainer": of_trainer,
    "gathers": of_gathers,
    "adapters": of_adapters,
    "swift": of_swift,
}


def perform(group: Sequence[Proof], out: Path, without: Sequence[str] = ()) -> Endings:
    """Run cases of one stack and kind in one process, with everything or without some patches."""
    (key,) = {_process(proof) for proof in group}
    stack, how, hidden = key
    off = [*hidden, *without]
    out.mkdir(parents=True, exist_ok=True)
    return HOW[how](stack, [proof.case for proof in group], {"VLMPATCH_DISABLE": ",".join(off)}, out)


def groups(wanted: Iterable[Proof]) -> list[list[Proof]]:
    """Those that can share a process when every patch is on."""
    found: dict[Any, list[Proof]] = {}
    for proof in wanted:
        found.setdefault(_process(proof), []).append(proof)
    return list(found.values())


def _process(proof: Proof) -> tuple[str, str, tuple[str, ...]]:
    return proof.stack, proof.case.how, proof.case.hidden_by


def with_all(case: Case, ending: Outcome) -> bool:
    """Whether a run with every patch ended as it should: right, if the case says nothing else.

    Where the patch overrules what the user said, it has to have said so.
    """
    return judge.fits(case.ends or "right", ending) and case.warns in ending.warned


def without(case: Case, ending: Outcome) -> bool:
    """Whether a run without the patch alone ended as it should: not so."""
    return judge.fits(case.lacking or case.fails, ending) and not ending.warned


def main() -> int:
    """Print both endings of each; exit status 1 where one is not as it should be."""
    wrong = 0
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.alone")
    parser.add_argument("patches", nargs="*", help="all of them when none is named")
    asked = parser.parse_args()
    if unknown := set(asked.patches) - {proof.patch for proof in proofs()}:
        parser.error(f"no case of cases/ proves {', '.join(sorted(unknown))}")
    out = Path(tempfile.mkdtemp(prefix="alone-"))
    wanted = [proof for proof in proofs() if not asked.patches or proof.patch in asked.patches]
    for number, group in enumerate(groups(wanted)):
        place = out / str(number)
        whole = perform(group, place / "all")
        for proof in group:
            case, lacking = proof.case, perform([proof], place / proof.patch, without=[proof.patch])
            ok = with_all(case, whole[case.id]) and without(case, lacking[case.id])
            wrong += not ok
            print(f"{'ok   ' if ok else 'WRONG'} {proof.id} ({case.id})", flush=True)
            for word, endings in (("all", whole), ("without", lacking)):
                print(f"      {word:8}{' '.join(str(endings[case.id]).split())[:400]}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
