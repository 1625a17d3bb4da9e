"""Runs the matrix: every row on every stack, bare and with vlmpatch.

    python -m tests.matrix.run                       all of it (``make matrix``)
    python -m tests.matrix.run tf457-ds0182 trl116   these stacks
    python -m tests.matrix.run --row ddp-unused      this row, everywhere

Results that still hold are not run again (``store.key``); ``--fresh`` runs them all the same. What
was done when a run is interrupted is kept. Exits 1 when a row contradicts a gate.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.lab import cells, envs, launch
from tests.lab.envs import Stack
from tests.matrix import judge, render, rows, scripts, store
from tests.matrix.judge import Outcome
from tests.matrix.store import SIDES, Store
from vlmpatch.tools.cases import Case
from vlmpatch_lab.cell import Cell

LAUNCH = {"VLMPATCH_LAB_GLOO": "1"}  # for frameworks that start DeepSpeed through accelerate
LAB = store.ROOT / "vlmpatch_lab"
BATCH = 20  # rows a process runs before its results are kept
Runner = Callable[[Stack, Sequence[Case], str], dict[str, cells.Result]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix.run")
    parser.add_argument("stacks", nargs="*", metavar="STACK", help="all of them when none is named")
    parser.add_argument("--row", action="append", default=[], help="only these rows")
    parser.add_argument("--fresh", action="store_true", help="run what is known too")
    parser.add_argument("--judge", action="store_true", help="run nothing; judge what is known")
    asked = parser.parse_args()
    known = rows.read()
    stacks = envs.read_stacks()
    for given, declared in ((asked.stacks, stacks), (asked.row, known)):
        if unknown := set(given) - declared.keys():
            parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(declared)}")
    chosen = [known[name] for name in asked.row or known]
    results = Store()
    for stack in [stacks[name] for name in asked.stacks or stacks]:
        if not asked.judge:
            run_stack(stack, [row for row in chosen if rows.runs_on(row, stack)], results, fresh=asked.fresh)
    return report(results)


def run_stack(stack: Stack, wanted: Sequence[Case], results: Store, *, fresh: bool = False) -> None:
    """Bring the rows of one stack up to date."""
    stale = {side: [row for row in wanted if fresh or _is_stale(results, stack, row, side)] for side in SIDES}
    if not any(stale.values()):
        say(stack, f"{len(wanted)} rows, all known")
        return
    for side in SIDES:
        todo = stale[side]
        say(stack, f"{side}: {len(todo)} of {len(wanted)} rows to run")
        for start in range(0, len(todo), BATCH):
            started = time.monotonic()
            for row, found in _run(stack, todo[start : start + BATCH], side):
                results.put(stack.name, row.id, side, _stamped(stack, row, side, found))
                say(stack, f"{side:8}{row.id:28}{found}")
            results.save(envs.read_stacks(), rows.read())
            say(stack, f"{side}: {min(start + BATCH, len(todo))} done, {time.monotonic() - started:.0f} s")


def _run(stack: Stack, todo: Sequence[Case], side: str) -> Iterable[tuple[Case, Outcome]]:
    groups: dict[tuple[Runner, tuple[str, ...]], list[Case]] = {}
    for row in todo:  # one process each
        without = row.without if side == "patched" else ()
        groups.setdefault((_run_scripts if row.how == "script" else _run_cells, without), []).append(row)
    for (run, _), chosen in groups.items():
        try:
            done = run(stack, chosen, side)
        except RuntimeError as error:  # the process died, or the environment cannot be made
            say(stack, f"{side}: {error}")
            continue
        for row in chosen:
            yield row, judge.outcome(done[row.id], row.patch)


def _run_cells(stack: Stack, todo: Sequence[Case], side: str) -> dict[str, cells.Result]:
    wanted = [row.cell for row in todo]
    out = envs.cache_root() / "matrix" / stack.folder.name
    models = launch.checkpoints(stack, {cell.kind for cell in wanted})
    references = [c.reference for c in wanted if not _holds(out / "bare", c.reference, models[c.kind])]
    if side == "bare":
        done = cells.run(stack, [*references, *wanted], out / "bare", env=LAUNCH)
    else:
        if references:
            cells.run(stack, references, out / "bare", env=LAUNCH)
        env = {**LAUNCH, "VLMPATCH_DISABLE": ",".join(todo[0].without)}
        done = cells.run(stack, wanted, out / "patched", patched=True, reference=out / "bare", env=env)
    return {row.id: done[row.cell.id] for row in todo}


def _run_scripts(stack: Stack, todo: Sequence[Case], side: str) -> dict[str, cells.Result]:
    """Bare: with every patch but the row's."""
    wanted = {
        row.id: dataclasses.replace(script, without=(row.patch,)) if side == "bare" else script
        for row in todo
        if (script := rows.script(row))
    }
    done = scripts.run(
        stack, list(wanted.values()), envs.cache_root() / "matrix" / stack.folder.name / f"script-{side}"
    )
    return {name: done[script] for name, script in wanted.items()}


def _holds(out: Path, reference: Cell, model: Path) -> bool:
    """Whether every rank recorded it, on the checkpoint and by the lab as they are now."""
    recorded = [path.stat().st_mtime for path in (out / reference.id).glob("rank*.pt")]
    depends = (model / "complete", *LAB.glob("*.py"))
    return len(recorded) == reference.ranks and min(recorded) > max(path.stat().st_mtime for path in depends)


def _is_stale(results: Store, stack: Stack, row: Case, side: str) -> bool:
    found = results.get(stack.name, row.id, side)
    return found is None or found.key != store.key(stack, row, side)


def _stamped(stack: Stack, row: Case, side: str, found: Outcome) -> Outcome:
    today = datetime.date.today().isoformat()
    key = store.key(stack, row, side)
    revision = store.revision(row) if side == "patched" else ""
    return dataclasses.replace(found, revision=revision, key=key, date=today, versions=rows.versions(stack))


def say(stack: Stack, text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} [{stack.name}] {text}", flush=True)


def report(results: Store) -> int:
    """Print every contradiction; returns the exit code."""
    known, catalog = rows.read(), store.entries()
    contradictions, right = 0, 0
    for name, stack in envs.read_stacks().items():
        pairs = []
        for row in known.values():
            bare, patched = (results.get(name, row.id, side) for side in SIDES)
            if bare is None or patched is None or not rows.runs_on(row, stack):
                continue
            entry = catalog.entries.get(row.patch)
            faults = judge.faults(row, entry, rows.versions(stack), bare, patched)
            pairs.append((row, bare, patched))
            contradictions += len(faults)
            right += not faults
            for fault in faults:
                print(f"FAULT [{name}] {row.id}: {fault}")
        for patch in judge.unproven(pairs):
            print(f"note  [{name}] {patch} is in force, and no row of it fails without it")
    print(f"{right} rows bear out their gates, {contradictions} contradiction(s)")
    print(render.Measured(results).standing(render.WORDS["en"]).replace(render.EARLIER, "*"))
    return 1 if contradictions else 0


if __name__ == "__main__":
    sys.exit(main())
