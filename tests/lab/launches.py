"""Scripts that public repositories ship, and what doctor understands of each: ``data/launches.csv``.

Their texts stay where they are: a line holds the place of a script, its digest, and facts.

    python -m tests.lab.launches SOURCES    examine them again, and write what changed

SOURCES holds a clone of each repository, by name with ``+`` for ``/`` (``QwenLM+Qwen3-VL``).
"""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.lab.pages import ROOT
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.model import Entry
from vlmpatch.catalog.read import read as read_catalog
from vlmpatch.gate import versions
from vlmpatch.tools.lint import understood
from vlmpatch.tools.lint.command import read as read_command
from vlmpatch.tools.lint.context import Around
from vlmpatch.tools.lint.rules import lint
from vlmpatch.tools.lint.understood import Understood
from vlmpatch.tools.view.language import Words

RECORD = ROOT / "data" / "launches.csv"
# What the scripts are judged with, whatever is installed where this runs.
INSTALLED = {"torch": "2.8.0", "transformers": "4.57.6", "deepspeed": "0.18.2", "peft": "0.18.1"}
READ = (".sh", ".slurm", ".sbatch", ".py", ".json", ".yaml", ".yml")
_LARGEST = 1 << 20


class Shipped(NamedTuple):
    """A script, where it is started, and what was seen of it; several trainings are parted by ``; ``."""

    repository: str
    commit: str
    folder: str
    script: str
    sha256: str = ""
    understood: str = ""
    wrong: str = ""
    ended: str = ""
    left: str = ""
    notes: str = ""
    unread: str = ""

    @property
    def id(self) -> str:
        """Its place, as a person would say it."""
        return f"{self.repository}: {self.script}"


def read() -> list[Shipped]:
    """Every line of the record."""
    with RECORD.open(encoding="utf-8", newline="") as handle:
        return [Shipped(**line) for line in csv.DictReader(handle)]


def written(shipped: Iterable[Shipped]) -> str:
    """The record as text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Shipped._fields)
    writer.writerows(shipped)
    return text.getvalue()


def clone(sources: Path, shipped: Shipped) -> Path:
    """The clone of its repository, with a work tree or without one."""
    folder = sources / shipped.repository.replace("/", "+")
    return folder / "repo" if (folder / "repo").is_dir() else folder


def unpacked(clone: Path, commit: str, folder: Path, kinds: tuple[str, ...] = READ) -> None:
    """Put what doctor may read of ``commit`` into ``folder``: files whose names end in one of ``kinds``."""
    listed = _git(clone, "ls-tree", "-r", "-l", "-z", commit).decode().split("\0")
    names = [name for line in listed if (name := _readable(line, kinds))]
    with tarfile.open(fileobj=io.BytesIO(_git(clone, "archive", commit, "--", *names))) as archive:
        archive.extractall(folder, filter="data")


def _readable(line: str, kinds: tuple[str, ...]) -> str:
    """The name in a line of ``git ls-tree -l``, if the file is of a kind and size that is read."""
    facts, _, name = line.partition("\t")
    size = facts.split()[-1] if facts else ""
    return name if name.endswith(kinds) and size.isdigit() and int(size) <= _LARGEST else ""


def _git(clone: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(clone), *arguments], check=True, capture_output=True).stdout


def examined(shipped: Shipped, folder: Path) -> Shipped:
    """The same script with what is seen of it now; its repository lies in ``folder``."""
    text = (folder / shipped.script).read_bytes()
    start = folder / shipped.folder
    command = f"bash {os.path.relpath(folder / shipped.script, start)}"
    before = Path.cwd()
    os.chdir(start)
    try:
        reading = read_command(command, "the command")
        around = Around(None, INSTALLED, ending(), Words("en"))
        findings = [lint(launch, around) for launch in reading.launches]
    finally:
        os.chdir(before)
    seen = [understood.of(launch, told) for launch, told in zip(reading.launches, findings, strict=True)]
    unread = [problem for launch in reading.launches for problem in launch.problems] + [*reading.problems]
    return shipped._replace(
        sha256=hashlib.sha256(text).hexdigest(),
        understood="; ".join(map(line, seen)),
        wrong="; ".join(" ".join(each.wrong) for each in seen).strip("; "),
        ended="; ".join(_ended(each) for each in seen).strip("; "),
        left="; ".join(" ".join(each.left) for each in seen).strip("; "),
        notes="; ".join(" ".join(each.notes) for each in seen).strip("; "),
        unread="; ".join(dict.fromkeys(problem.said(Words("en")).partition(": ")[2] for problem in unread)),
    )


def line(seen: Understood) -> str:
    """Launcher, program, processes, engine, stage, tuning, checkpointing, reentrant, model; or ``-``."""
    switch = {True: "on", False: "off", None: None}
    shown = (*seen[1:7], switch[seen.checkpointing], seen.reentrant, seen.model)
    return " ".join("-" if value in ("", None) else str(value) for value in shown)


def _ended(seen: Understood) -> str:
    return " ".join(f"{code}:{','.join(patches)}" for code, patches in seen.ended.items())


@functools.cache
def ending() -> dict[str, tuple[str, ...]]:
    """The patches whose gate by version lets the versions above in, by the failures they end."""
    found: dict[str, tuple[str, ...]] = {}
    for entry in read_catalog(default_path()).entries.values():
        for failure in entry.failures if _acts(entry) else ():
            found[failure] = (*found.get(failure, ()), entry.id)
    return found


def _acts(entry: Entry) -> bool:
    """Whether it acts there: all versions hold, and it waits for no module of a script's own."""
    known = all(name in INSTALLED for name in entry.requires)
    upstream = any(target.partition(".")[0] in INSTALLED for target in entry.targets)
    return (
        known and upstream and all(versions.satisfies(INSTALLED[n], at) for n, at in entry.requires.items())
    )


def again(sources: Path) -> Iterator[Shipped]:
    """Every script of the record, examined again, a repository unpacked once."""
    places: dict[tuple[str, str], Path] = {}
    with tempfile.TemporaryDirectory() as made:
        for shipped in read():
            place = places.get((shipped.repository, shipped.commit))
            if place is None:
                place = places[shipped.repository, shipped.commit] = Path(made) / str(len(places))
                place.mkdir()
                unpacked(clone(sources, shipped), shipped.commit, place)
            yield examined(shipped, place)


if __name__ == "__main__":
    RECORD.write_text(written(list(again(Path(sys.argv[1])))), encoding="utf-8")
