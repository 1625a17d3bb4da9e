"""``python -m vlmpatch verify``: each patch tried on this machine, with the versions that are installed here.

For each patch whose versions are installed, a tiny two-rank training that shows its bug runs without
vlmpatch and with it. Every gradient of both is held against the same samples in one process, without an
engine and without checkpointing. The models are made from their configuration; nothing is downloaded,
and nothing is left: all that is written goes to one temporary folder.

What runs is said by ``cases/``: cases of the project's own matrix that need no framework and no script.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import vlmpatch_lab
from vlmpatch.catalog.model import Catalog, Entry
from vlmpatch.gate import versions
from vlmpatch.gate.verdict import by_version
from vlmpatch.tools import cases
from vlmpatch.tools.cases import Case
from vlmpatch.tools.run import INJECT
from vlmpatch.tools.view.language import Words
from vlmpatch.tools.view.page import Page
from vlmpatch_lab.cell import WORLD, Cell, write_cells
from vlmpatch_lab.patience import within

KINDS = ("qwen2_vl", "qwen2_5_vl")  # what vlmpatch_lab.models makes
STEPS = 2
TOLERANCE = {"cpu": 1e-5, "cuda": 5e-2}  # relative; bfloat16 on a GPU
LIMIT = 180.0  # seconds of a quiet machine without a word from a process until it counts as stuck
NEEDS = {"zero": "deepspeed", "fsdp": "torch", "lora": "peft"}
# torch's own words where a backend lacks a collective: gloo of torch 2.1 has none of those ZeRO needs.
_LACKING = re.compile(r"no support for \w+ in \w+ process")


class Ending(NamedTuple):
    """What one run did: ``right``, ``error``, ``missing``, ``ranks``, ``difference`` or ``none``."""

    outcome: str
    detail: str = ""
    cost: Mapping[str, Any] = {}
    applied: frozenset[str] = frozenset()
    log: str = ""


class Verdict(NamedTuple):
    """A case's two runs, and what they say of its patch."""

    case: Case
    bare: Ending
    patched: Ending

    @property
    def tried(self) -> bool:
        """False where both ran into one error that is not the patch's: a limit of this machine.

        Where bare ranks do not come as far, it is enough that the limit stopped those with the patch.
        """
        kind, _, pattern = self.case.fails.partition(": ")
        known = kind == "error" and re.search(pattern, self.bare.detail) is not None
        both = (
            self.bare.outcome == self.patched.outcome == "error" and self.bare.detail == self.patched.detail
        )
        lacking = self.patched.outcome == "error" and _LACKING.search(self.patched.detail) is not None
        return not lacking and (known or not both)

    @property
    def sound(self) -> bool:
        """Whether the patch keeps its promise here."""
        if self.case.warns and expected(self.case):
            return self.case.warns in self.patched.log
        return self.patched.outcome == "right"


def verify(catalog: Catalog, words: Words, only: Sequence[str] = (), device: str = "") -> int:
    """Try the patches that apply here and print a table.

    Args:
        catalog: what is known.
        words: the language of the table.
        only: patch ids; none means one run for every patch that has one.
        device: ``cpu`` or ``cuda``; the GPUs where there are two, if not given.

    Returns:
        The exit code: 0 all is well, 1 a patch does not keep its promise or could not be tried, 2 there
        is no such patch.
    """
    if unknown := [id_ for id_ in only if id_ not in catalog.entries]:
        print(words("{id} is no patch id; `python -m vlmpatch list` prints them", id=unknown[0]))
        return 2
    if versions.installed("torch", "torch").version is None:
        print(
            words(
                "There is no torch in {python}: run this with the Python that trains.", python=sys.executable
            )
        )
        return 1
    device = device or default_device()
    entries = [entry for entry in catalog.entries.values() if not only or entry.id in only]
    found = cases.read(catalog)
    for problem in found.problems:
        print(problem, file=sys.stderr)
    suitable = [case for case in found.known.values() if is_suitable(case)]
    chosen, without = choose(entries, catalog, suitable, thorough=bool(only), device=device)
    started = time.monotonic()
    verdicts = try_cases(chosen, device, words) if chosen else []
    page = view(verdicts, without, words, device, time.monotonic() - started)
    page.show(sys.stdout)
    tried = [verdict for verdict in verdicts if verdict.tried]
    failed = not all(verdict.sound for verdict in tried)
    return 1 if failed or (only and not tried) else 0


def default_device() -> str:
    """``cuda`` where every rank can have a GPU of its own; torch is asked in a process of its own."""
    question = "import torch; print(torch.cuda.device_count())"
    asked = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=False)
    count = asked.stdout.strip()
    return "cuda" if count.isdigit() and int(count) >= WORLD else "cpu"


# --- what to run --------------------------------------------------------------------------------


def is_suitable(case: Case) -> bool:
    """Whether a case of the matrix can run here, with neither a framework nor a script of the user's."""
    plain = case.matrix and case.how == "cell" and not case.framework and not case.cell.trainer
    return plain and bool(case.patch) and case.cell.kind in KINDS and _holds(case.only)


def expected(case: Case) -> bool:
    """Whether the bare run is known to fail with the versions installed here."""
    return _holds(case.where)


def choose(
    entries: Sequence[Entry], catalog: Catalog, suitable: Sequence[Case], *, thorough: bool, device: str
) -> tuple[list[Case], list[tuple[Entry, str]]]:
    """The cases to run, and the patches that none is run for, with the reason (one of ``view``'s)."""
    chosen: list[Case] = []
    without = []
    for entry in entries:
        if not by_version(entry, catalog.modules).needed:
            without.append((entry, "not needed"))
            continue
        own = [case for case in suitable if case.patch == entry.id and _can_run(case.cell)]
        # One that is known to fail here says more than one that is not.
        own.sort(key=lambda case: not expected(case))
        if not own:
            without.append((entry, "no run"))
        chosen += own if thorough else own[:1]
    return [dataclasses.replace(case, cell=prepared(case.cell, device)) for case in chosen], without


def prepared(cell: Cell, device: str) -> Cell:
    """``cell``, held against the same samples in one process, on ``device``."""
    steps = cell.compared or STEPS
    dtype = "float32" if device == "cpu" else "bfloat16"
    return dataclasses.replace(cell, compared=steps, steps=0, device=device, dtype=dtype)


def _can_run(cell: Cell) -> bool:
    said = (cell.engine, cell.tuning)
    needed = {package for word, package in NEEDS.items() if any(part.startswith(word) for part in said)}
    return all(versions.installed(package, package).version for package in needed)


def _holds(ranges: Mapping[str, str]) -> bool:
    return all(_inside(name, specifier) for name, specifier in ranges.items())


def _inside(name: str, specifier: str) -> bool:
    found = versions.installed(name, name.replace("-", "_")).version
    return found is not None and versions.satisfies(found, specifier)


# --- running ------------------------------------------------------------------------------------


def try_cases(chosen: Sequence[Case], device: str, words: Words) -> list[Verdict]:
    """Run every case bare and patched; all of a side share one import of what is installed."""
    cells = list(dict.fromkeys(case.cell for case in chosen))
    measures = list(dict.fromkeys(cell.reference for cell in cells))
    with tempfile.TemporaryDirectory(prefix="vlmpatch-verify-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        progress = Progress(len(measures) + 2 * len(cells), words)
        bare = run_side(folder, "bare", [*measures, *cells], progress)
        patched = {}
        for number, without in enumerate(dict.fromkeys(case.without for case in chosen)):
            own = list(dict.fromkeys(case.cell for case in chosen if case.without == without))
            patched[without] = run_side(folder, f"patched{number}", own, progress, without)
        progress.end()
        tolerance = TOLERANCE[device]
        return [
            Verdict(
                case, judge(bare, case.cell, tolerance), judge(patched[case.without], case.cell, tolerance)
            )
            for case in chosen
        ]


def run_side(
    folder: Path, side: str, cells: Sequence[Cell], progress: Progress, without: Sequence[str] = ()
) -> dict[str, Any]:
    """Run ``cells`` in a process of their own, ``without`` these patches; what each reports, by its id."""
    out = folder / side
    out.mkdir()
    write_cells(out / "cells.json", list(cells))
    models = [f"{kind}={folder / kind}" for kind in sorted({cell.kind for cell in cells})]
    command = [
        sys.executable,
        "-m",
        "vlmpatch_lab.run",
        str(out / "cells.json"),
        "--out",
        str(out),
        "--make",
    ]
    command += ["--patched"] if side != "bare" else []
    command += ["--reference", str(folder / "bare"), "--models", *models]
    reports: dict[str, Any] = {}
    environ = environment(os.environ, folder, cells[0].device)
    if without:
        environ["VLMPATCH_DISABLE"] = ",".join(filter(None, [environ.get("VLMPATCH_DISABLE"), *without]))
    with open(out / "log", "w") as log, launched(command, folder, environ, log) as process:
        progress.side(side)
        for line in spoken(process):
            if line.startswith('{"id": '):
                report = json.loads(line)
                # Read now: the folder is gone when the table is made.
                report["log"] = "".join(_text(rank.get("log", "")) for rank in report["ranks"])
                reports[report["id"]] = report
                progress.done()
    if len(reports) < len(cells):
        reports[""] = {"error": _last_line(_text(str(out / "log")))}
    return reports


@contextlib.contextmanager
def launched(
    command: list[str], folder: Path, environ: Mapping[str, str], log: Any
) -> Iterator[subprocess.Popen[str]]:
    """A process group that is gone afterwards, however the block ends."""
    process = subprocess.Popen(
        command,
        env=environ,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def spoken(process: subprocess.Popen[str]) -> Iterator[str]:
    """The lines a process prints; one that says nothing for long is ended."""
    import threading

    def listen(said: threading.Event) -> None:
        if not within(LIMIT, said.wait):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    if process.stdout is None:
        return
    while True:
        said = threading.Event()
        threading.Thread(target=listen, args=(said,), daemon=True).start()
        line = process.stdout.readline()
        said.set()
        if not line:
            return
        yield line


def environment(environ: Mapping[str, str], folder: Path, device: str) -> dict[str, str]:
    """A run's environment: bare of vlmpatch unless asked for, and writing to ``folder`` alone."""
    launch = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {name: value for name, value in environ.items() if name not in (*launch, "VLMPATCH_WATCH")}
    path = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != INJECT]
    here = Path(vlmpatch_lab.__file__).resolve().parent.parent
    if here.name not in ("site-packages", "dist-packages"):  # a checkout; what is installed is found anyway
        path.insert(0, str(here))
    caches = (
        "TRITON_CACHE_DIR",
        "TORCH_EXTENSIONS_DIR",
        "HF_HOME",
        "HF_MODULES_CACHE",
        "TORCHINDUCTOR_CACHE_DIR",
    )
    return {
        **kept,
        **{name: str(folder / "cache" / name) for name in caches},
        "TMPDIR": str(folder),
        **({"DS_ACCELERATOR": "cpu"} if device == "cpu" else {}),
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # torch 2.6 starts its compilers on import, and they outlive it
        "HF_HUB_OFFLINE": "1",
        # Asking the driver whether there is a GPU must not start CUDA before the ranks are forked.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }


class Progress:
    """One line on standard error that counts, where somebody looks at it."""

    def __init__(self, total: int, words: Words) -> None:
        self.total, self.count, self.words = total, 0, words
        self.name = ""
        self.shown = sys.stderr.isatty()

    def side(self, name: str) -> None:
        """``bare`` or ``patched`` begins."""
        self.name = self.words("without vlmpatch") if name == "bare" else self.words("with vlmpatch")
        self._say(self.words("starting"))

    def done(self) -> None:
        """One more run is over."""
        self.count += 1
        self._say()

    def end(self) -> None:
        """Take the line away."""
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def _say(self, more: str = "") -> None:
        if self.shown:
            print(
                f"\r\033[K{self.count}/{self.total} {self.name} {more}", end="", file=sys.stderr, flush=True
            )


# --- judging ------------------------------------------------------------------------------------


def judge(reports: Mapping[str, Any], cell: Cell, tolerance: float) -> Ending:
    """The worst thing a run shows."""
    report = reports.get(cell.id)
    if report is None:
        return Ending("none", str(reports.get("", {}).get("error", "")))
    first = report["ranks"][0]
    states = first.get("patches", {})
    applied = frozenset(name for name, state in states.items() if state == "applied")
    outcome, detail = _worst(report, tolerance)
    return Ending(outcome, detail, first.get("cost", {}), applied, report["log"])


def _worst(report: Mapping[str, Any], tolerance: float) -> tuple[str, str]:
    if not report["ok"]:
        return "error", " ".join((report["error"] or "").split())[:90]
    compared = report["gradients"]
    if "difference" not in compared:
        return "none", "the measure itself could not be run"
    if compared["between_ranks"] > tolerance:
        return "ranks", f"{compared['between_ranks']:.1g}"
    if compared["missing"]:
        return "missing", str(len(compared["missing"]))
    if not compared["difference"] <= tolerance:  # also when it is not a number
        return "difference", f"{compared['difference']:.1g}"
    return "right", f"{compared['difference']:.0e}"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _last_line(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


# --- the table ----------------------------------------------------------------------------------


def view(
    verdicts: Sequence[Verdict],
    without: Sequence[tuple[Entry, str]],
    words: Words,
    device: str,
    seconds: float,
) -> Page:
    """What was tried, what was not and why, and the sum of it."""
    page = Page()
    ranks = (
        words("two ranks over gloo on the CPU, float32")
        if device == "cpu"
        else words("two GPUs, NCCL, bfloat16")
    )
    page.add(f"{_installed()}; {ranks}", style="dim")
    for verdict in verdicts:
        page.add()
        mark, style = ("ok", "good") if verdict.sound else ("NO", "bad") if verdict.tried else ("--", "warn")
        page.add(verdict.case.patch, style=style, label=mark)
        page.add(words.pick((verdict.case.en, verdict.case.zh)), label=words("run"))
        page.add(said(verdict.bare, words), label=words("without"))
        page.add(said(verdict.patched, words) + _remark(verdict, words), label=words("with"))
        if costs := _costs(verdict, words):
            page.add(costs, label=words("cost"))
    untried = [entry.id for entry, reason in without if reason == "no run"]
    if untried:
        page.add()
        page.add(
            words(
                "Needed here, and no tiny run shows it (a framework's or a script's own): {ids}",
                ids=", ".join(untried),
            )
        )
    page.add()
    tried = [verdict for verdict in verdicts if verdict.tried]
    good = sum(verdict.sound for verdict in tried)
    spare = sum(reason == "not needed" for _, reason in without)
    sentence = (
        "{good} of {all} runs are as they should be, in {seconds} s; {spare} patches are not needed here."
    )
    text = words(sentence, good=good, all=len(tried), seconds=round(seconds), spare=spare)
    page.add(text, style="good" if good == len(tried) else "bad")
    return page


def said(found: Ending, words: Words) -> str:
    """An outcome in words."""
    sentences = {
        "right": words("gradients are right ({detail} off)", detail=found.detail),
        "error": words("ends with {detail}", detail=found.detail),
        "missing": words("{detail} trainable tensors get no gradient", detail=found.detail),
        "difference": words("gradients are wrong, {detail} off", detail=found.detail),
        "ranks": words("gradients differ between the ranks, by {detail}", detail=found.detail),
        "none": words("could not be run: {detail}", detail=found.detail),
    }
    return sentences[found.outcome]


def _remark(verdict: Verdict, words: Words) -> str:
    if verdict.case.warns and verdict.sound:
        return "; " + words("you said so in so many words, so it stands, with a warning")
    if not verdict.tried:
        return "; " + words("this machine cannot run it, with vlmpatch or without")
    if verdict.bare.outcome == "right" and verdict.sound:
        return "; " + words("nothing to mend showed in this run")
    return ""


def _costs(verdict: Verdict, words: Words) -> str:
    parts = []
    for name, found in (("without", verdict.bare), ("with", verdict.patched)):
        cost, shown = found.cost, []
        if "elements" in cost:
            shown.append(words("gathers a step: {calls}", calls=cost["calls"]))
        if "peak_bytes" in cost:
            shown.append(f"{cost['seconds'] * 1000:.0f} ms, {cost['peak_bytes'] / 2**20:.0f} MiB")
        if shown:
            parts.append(f"{words(name)}: {', '.join(shown)}")
    return "; ".join(parts)


def _installed() -> str:
    names = ("torch", "transformers", "deepspeed", "peft")
    found = ((name, versions.installed(name, name).version) for name in names)
    return ", ".join(f"{name} {version}" for name, version in found if version)
