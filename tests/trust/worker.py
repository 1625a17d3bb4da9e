"""Runs inside a stack: imports it once, then tries every patch in forked children.

    python -m tests.trust.worker JOB.json

The stack is imported without vlmpatch. A child takes one target and every patch of it through orders of
events and through faults; what it finds goes to standard output, one JSON line a target.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import random
import resource
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.trust.acts import silent
from tests.trust.orders import ALL, Order, some
from tests.trust.snapshot import Snapshot, differences, snapshot

STANDIN = Path(__file__).resolve().parents[1] / "standin"
REMOTE = "transformers_modules.standin.modeling_minicpmv"
PROGRESS = "progress"  # beside the job's modules: which target is tried
KINDS = (RuntimeError, KeyboardInterrupt, SystemExit)


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    lay_out_scripts(Path(job["folder"]))
    targets = [target for target in job["targets"] if _import(target)]
    if "vlmpatch" in sys.modules:
        raise RuntimeError("vlmpatch was imported with the stack: every target would count as patched before")
    progress = Path(job["folder"]).parent / PROGRESS
    for number, target in enumerate(targets, 1):
        progress.write_text(f"{number} of {len(targets)}: {target}")
        started = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        log = _in_child(Trial(target, targets, job).run)
        log["target"] = target
        log["seconds"] = round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - started, 1)
        print(json.dumps(log), flush=True)


def lay_out_scripts(folder: Path) -> None:
    """MiniCPM-V's script and remote code, as if they were the user's."""
    remote = folder / "transformers_modules" / "standin"
    shutil.copytree(STANDIN / "minicpmv26", remote)
    for package in (remote, remote.parent):
        (package / "__init__.py").touch()
    shutil.copytree(STANDIN / "finetune", folder / "script")
    sys.path[:0] = [str(folder), str(folder / "script")]


def _import(target: str) -> bool:
    try:
        importlib.import_module(target)
    except Exception as error:
        print(f"{target} cannot be imported: {error!r}", file=sys.stderr)
        return False
    return True


def _in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    reader, writer = os.pipe()
    gc.freeze()  # a collection in the child must not go through all of the stack
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            log = work()
        except BaseException:
            log = {"found": [traceback.format_exc()]}
        with os.fdopen(writer, "w") as pipe:
            json.dump(log, pipe)
        sys.exit()  # all the way: what vlmpatch does to the end of a process is looked at too
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    answer: dict[str, Any] = json.loads(said) if said else {"found": ["the child died"]}
    answer["found"] += [f"the child ended with {code}"] if code else []
    return answer


class Trial:
    """One target and its patches."""

    def __init__(self, target: str, targets: list[str], job: dict[str, Any]) -> None:
        self.target, self.job = target, job
        self.modules = sorted(
            {*targets, "torch.utils.checkpoint", "torch.nn.functional"} & sys.modules.keys()
        )
        self.found: list[str] = []
        self.counts = {"orders": 0, "faults": 0, "rounds": 0, "threads": 0}
        self.before: Snapshot = {}
        self.imported: set[str] = set()  # functions of ours among the target's names
        self.told = False
        os.environ["VLMPATCH_LOG"] = "off"

    def run(self) -> dict[str, Any]:
        ids = self._start()
        self._stop()
        for id_ in ids:
            part = self.job.get("part")  # [which, of how many]: a part of all orders
            chosen = ALL[part[0] :: part[1]] if part else some(self.job["orders"], f"{self.target} {id_}")
            for order in chosen:
                self._guarded(self.order, id_, order)
        for work in (self.faults, self.rounds, self.threads) if ids else ():
            self._guarded(work, ids)
        return {"found": self.found[:20], "patches": ids, **self.counts}

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception:
            self.found.append(f"{arguments}: {traceback.format_exc()[-1500:]}")

    def _snapshot(self) -> Snapshot:
        return snapshot(sys.modules[name] for name in self.modules if name in sys.modules)

    def _start(self) -> list[str]:
        """Start vlmpatch with this target's patches only; returns those that apply to it."""
        with _environment(VLMPATCH_DISABLE="all", VLMPATCH_LOG="off"):
            from vlmpatch import bootstrap
            from vlmpatch.catalog import environment
            from vlmpatch.catalog.location import default_path
            from vlmpatch.catalog.read import read
            from vlmpatch.engine import engine
            from vlmpatch.imports import finder
            from vlmpatch.support import log

            bootstrap.engine().hooks.remove()  # its own start is taken back: the next is ours

        log.configure("off")
        if extra := self.job.get("patches"):
            patches = importlib.import_module("vlmpatch.patches")
            patches.__path__ = list(dict.fromkeys([*patches.__path__, extra]))

        catalog = read(self.job.get("catalog") or default_path())
        known = catalog.entries
        mine = [id_ for id_, entry in known.items() if any(self._is_target(each) for each in entry.targets)]
        self.others, self.copied = sorted(known.keys() - set(mine)), False
        environ = {"VLMPATCH_DISABLE": ",".join(self.others)}
        executed = finder.Hooks.executed
        trial = self

        def noting(hooks_: Any, name: str) -> None:
            if name == trial.target and not trial.told:
                trial._run_again()
            executed(hooks_, name)

        if not hasattr(finder, "noted"):
            finder.noted = True  # type: ignore[attr-defined]
            finder.Hooks.executed = noting  # type: ignore[method-assign,assignment]
        self.told = False
        self.before, self.imported = self._snapshot(), set()
        self.engine = engine.Engine(catalog, environment.read(environ, known))
        self.engine.arm()
        self.mine = mine
        states = self.engine.status()
        return [id_ for id_ in mine if states[id_].state.value == "applied"]

    def _run_again(self) -> None:
        """The target has run, untouched as yet; names of ours that a reload keeps are not its own.

        Nor is a function of ours that it imported from elsewhere: that may stay, off, or go.
        """
        known, own, now = self.before, f"{self.target}.", self._snapshot()
        again = f"{own}__name__" in known
        fresh = {
            name: value
            for name, value in now.items()
            if name.startswith(own) and (not again or name in known or "(" in name.removesuffix("()"))
        }
        self.imported = {n for n in fresh if hasattr(getattr(now[n], "thing", None), "__vlmpatch__")}
        # What else there is may be patched just now: of that, what it was before counts.
        self.before = {name: value for name, value in known.items() if not name.startswith(own)} | fresh

    def _exact(self, where: str, before: Snapshot) -> None:
        self.found += [f"{where}: {words}" for words in differences(before, self._snapshot())[:3]]

    def _is_target(self, pattern: str) -> bool:
        from fnmatch import fnmatchcase

        return fnmatchcase(self.target, pattern)

    def _stop(self) -> None:
        self.engine.undo([])
        self.engine.hooks.remove()

    def _check(self, where: str, id_: str, on: bool) -> None:
        state = self.engine.status()[id_].state.value
        if self.copied and state == "conflict" and "another copy" in self.engine.status()[id_].reason:
            return  # the other was there first, while this one was off
        if on and state != "applied":
            self.found.append(f"{where}: {id_} is {state}: {self.engine.status()[id_].reason}")
        elif on:
            self.found += [f"{where}: {words}" for words in silent(self.engine, id_)]
        elif state != "off":
            self.found.append(f"{where}: {id_} is {state}")
        for other in self.mine:
            if other != id_ and self.engine.status()[other].state.value == "applied":
                self.found += [f"{where}: beside it {words}" for words in silent(self.engine, other)]

    def order(self, id_: str, order: Order) -> None:
        """Take ``id_`` through ``order``; at each step it acts or is gone, at the end all is as it was."""
        self.counts["orders"] += 1
        where = f"{id_} after"
        imported = started = off = False
        copy: Any = None
        if order.index("vlmpatch") < order.index("target"):
            del sys.modules[self.target]
        for event in order:
            where += f" {event}"
            if event == "target":
                importlib.import_module(self.target)
                imported = True
            elif event == "vlmpatch":
                self._start()
                started = True
            elif event == "disabled":
                with self.engine.disabled([id_]):
                    self._check(f"{where} (inside)", id_, on=False)
            elif event == "undo":
                self.engine.undo([id_])
                off = True
            elif event == "redo":
                self.engine.redo([id_])
                off = False
            elif event == "reload":
                importlib.reload(sys.modules[self.target])
            elif event == "second" and started:
                self.told = True
                self.engine.hooks.executed(self.target)
                self.told = False
            elif event == "copy":
                with _environment(VLMPATCH_DISABLE=",".join(self.others), VLMPATCH_LOG="off"):
                    copy = _second_copy()
                self.copied = True
            if imported and started:
                self._check(where, id_, on=not off)
        if copy is not None:  # the last to come goes first: copies do not know of each other
            copy.undo([])
            copy.hooks.remove()
            # What was undone under its wrappers was switched off in place; now it can go altogether.
            self.engine.redo([])
        self._stop()
        left = differences(self.before, self._snapshot(), self.imported)
        self.found += [f"{where}, then undone: {words}" for words in left[:3]]

    def faults(self, ids: list[str]) -> None:
        """An exception at every call inside vlmpatch and the patch, while it is applied and undone."""
        self._start()
        for id_ in ids:
            self.engine.undo([id_])
            for work in (self.engine.redo, self.engine.undo):
                before = self._snapshot()
                steps = _steps(functools.partial(work, [id_]))
                (self.engine.undo if work == self.engine.redo else self.engine.redo)([id_])
                every = max(1, steps * len(KINDS) // self.job["faults"])
                for number in range(random.Random(id_).randrange(every), steps * len(KINDS), every):
                    step, kind = divmod(number, len(KINDS))
                    self._fault(id_, work, step, KINDS[kind], before)
                if work == self.engine.redo:
                    self.engine.redo([id_])
            self.engine.redo([id_])
        self._stop()

    def _fault(self, id_: str, work: Any, step: int, kind: type[BaseException], before: Snapshot) -> None:
        self.counts["faults"] += 1
        where = f"{id_}: {kind.__name__} at call {step} of {work.__name__}"
        with contextlib.suppress(kind):
            _steps(functools.partial(work, [id_]), step, kind)
        status = self.engine.status()[id_]
        whole = len(self.engine.catalog.entries[id_].targets) == 1  # else its other target may have gone well
        if work == self.engine.redo and status.state.value == "failed" and whole:
            left = [record for record in self.engine.journal._records if record.patch == id_]
            self.found += [f"{where}: left {record.what}" for record in left]
        self.engine.undo([id_])
        if work == self.engine.redo:
            self._exact(where, before)
        self.engine.redo([id_])
        if self.engine.status()[id_].state.value != "applied":
            self.found.append(f"{where}: afterwards {self.engine.status()[id_]}")
        else:
            self.found += [f"{where}: afterwards {words}" for words in silent(self.engine, id_)]
        if work == self.engine.redo:
            self.engine.undo([id_])

    def rounds(self, ids: list[str]) -> None:
        """Apply and undo again and again: memory stays flat."""
        self._start()
        held: list[int] = []
        for number in range(self.job["rounds"]):
            self.counts["rounds"] += 1
            self.engine.undo(ids)
            self.engine.redo(ids)
            with self.engine.disabled(ids):
                pass
            if number in (self.job["rounds"] // 2, self.job["rounds"] - 1):
                gc.collect()
                held.append(len(gc.get_objects()))
        self._stop()
        if held and held[-1] - held[0] > 200:
            self.found.append(f"rounds: {held[-1] - held[0]} objects more after half the rounds")

    def threads(self, ids: list[str]) -> None:
        """32 threads import, look, disable, undo and redo at once; then all is as it should be."""
        self._start()
        errors: list[str] = []

        def work(number: int) -> None:
            for _ in range(self.job["threads"]):
                try:
                    if number % 4 == 0:
                        self.engine.undo(ids[number % len(ids) :][:1])
                        self.engine.redo([])
                    elif number % 4 == 1:
                        with self.engine.disabled(ids[number % len(ids) :][:1]):
                            pass
                    elif number % 4 == 2:
                        self.engine.hooks.executed(self.target)
                    else:
                        importlib.import_module(self.target)
                        self.engine.status()
                except BaseException:
                    errors.append(traceback.format_exc()[-600:])

        self.told = True
        workers = [threading.Thread(target=work, args=(number,)) for number in range(32)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.told = False
        self.counts["threads"] += len(workers)
        self.found += [f"threads: {words}" for words in errors[:3]]
        for id_ in ids:
            self._check("after the threads", id_, on=True)
        self._stop()
        self._exact("threads", self.before)


def _second_copy() -> Any:
    """Another vlmpatch in this process, with modules of its own: started, then out of sight."""
    ours = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "vlmpatch"}
    for name in ours:
        del sys.modules[name]
    try:
        return importlib.import_module("vlmpatch.bootstrap").engine()
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "vlmpatch"]:
            del sys.modules[name]
        sys.modules.update(ours)


@contextlib.contextmanager
def _environment(**wanted: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _steps(work: Callable[[], object], at: int = -1, kind: type[BaseException] = RuntimeError) -> int:
    """Run ``work`` and count the calls of our functions in it; raise ``kind`` at call number ``at``."""
    from vlmpatch.catalog.location import PACKAGE as ours

    places = (ours, os.path.join(os.path.dirname(ours), "patches"))
    seen = -1

    def watch(frame: Any, event: str, _argument: object) -> None:
        nonlocal seen
        # What only puts things in order after a fault is not where a second one is injected.
        if event == "call" and frame.f_code.co_filename.startswith(places) and not _cleaning(frame):
            seen += 1
            if seen == at:
                raise kind("injected")

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen + 1


def _cleaning(frame: Any) -> Iterator[str] | bool:
    return frame.f_code.co_name in ("__exit__", "_failure")


if __name__ == "__main__":
    main()
