"""``python -m vlmpatch verify``: each patch tried on this machine, with the versions that are installed here.

For each patch whose versions are installed, a tiny two-rank training that shows its bug runs without
vlmpatch and with it. Every gradient of both is held against the same samples in one process, without an
engine and without checkpointing. The models are made from their configuration; nothing is downloaded,
and nothing is left: all that is written goes to one temporary folder.

What runs is said by ``cases/``: cases of the project's own matrix that need no framework and no script.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence

from vlmpatch.catalog.model import Catalog
from vlmpatch.gate import versions
from vlmpatch.tools import cases
from vlmpatch.tools.lab import WORLD
from vlmpatch.tools.verify import elsewhere, table
from vlmpatch.tools.verify.choice import choose, is_suitable
from vlmpatch.tools.verify.room import NoRoom
from vlmpatch.tools.verify.running import try_cases
from vlmpatch.tools.verify.table import Outcome
from vlmpatch.tools.view.language import Words

FULL_DISK = 3  # the exit code that says nothing of any patch


def verify(
    catalog: Catalog, words: Words, only: Sequence[str] = (), device: str = "", as_data: bool = False
) -> int:
    """Try the patches that apply here and print a table.

    Args:
        catalog: what is known.
        words: the language of the table.
        only: patch ids; none means one run for every patch that has one.
        device: ``cpu`` or ``cuda``; the GPUs where there are two, if not given.
        as_data: print JSON instead.

    Returns:
        The exit code: 0 all is well, 1 a patch does not keep its promise or could not be tried, 2 there
        is no such patch, 3 the disk is full, which says nothing of a patch.
    """
    only = [catalog.renamed.get(id_, id_) for id_ in only]
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
    try:
        outcome = tried(catalog, words, only, device or default_device())
    except NoRoom as found:
        print(table.full(found, words), file=sys.stderr)
        return FULL_DISK
    if as_data:
        print(json.dumps(table.data(outcome), ensure_ascii=False, indent=2))
    else:
        table.page(outcome, words).show(sys.stdout)
    failed = not all(verdict.sound for verdict in outcome.tried)
    return 1 if failed or (only and not outcome.tried) else 0


def tried(catalog: Catalog, words: Words, only: Sequence[str], device: str) -> Outcome:
    """Choose the runs, make them, and look up where the other patches are proved.

    Raises:
        NoRoom: the disk is full.
    """
    entries = [entry for entry in catalog.entries.values() if not only or entry.id in only]
    found = cases.every(catalog)
    for problem in found.problems:
        print(f"{problem.where}: {words.told(f'{problem.what}. {problem.remedy}')}", file=sys.stderr)
    suitable = [case for case in found.known.values() if is_suitable(case)]
    chosen, without = choose(entries, catalog, suitable, thorough=bool(only), device=device)
    started = time.monotonic()
    verdicts = try_cases(chosen, device, words) if chosen else []
    names = {name: catalog.modules.get(name, name) for entry in entries for name in entry.requires}
    here = {name: versions.installed(name, module).version for name, module in names.items()}
    proofs = [
        elsewhere.of(entry, found.known.values(), here) for entry, reason in without if reason == "no run"
    ]
    spare = sum(reason == "not needed" for _, reason in without)
    return Outcome(device, time.monotonic() - started, verdicts, proofs, spare)


def default_device() -> str:
    """``cuda`` where every rank can have a GPU of its own; torch is asked in a process of its own."""
    question = "import torch; print(torch.cuda.device_count())"
    asked = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=False)
    count = asked.stdout.strip()
    return "cuda" if count.isdigit() and int(count) >= WORLD else "cpu"
