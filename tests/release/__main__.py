"""python -m tests.release              what is ready, what is open, and its command; 1 until nothing is open
python -m tests.release --run PROOF …  run proofs, and record each that passes
python -m tests.release --build      build twice, compare, check; print the sums
python -m tests.release --write X.Y.Z    write version, date and changelog
python -m tests.release --address URL    write [project.urls], now or later; no release is ready without them
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.generate.untranslated import owed
from tests.lab import table
from tests.release import built, proofs, writing
from tests.release.proofs import PROOFS, ROOT
from vlmpatch import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Line(NamedTuple):
    """A line of the checklist; ``remedy`` is the command for one that is open."""

    good: bool
    words: str
    remedy: str


def readiness(root: Path = ROOT) -> Iterator[Line]:
    """What has to be written before a release."""
    cited = re.search(r"^version: (\S+)$", (root / "CITATION.cff").read_text("utf-8"), re.M)
    write = f".venv/bin/python -m tests.release --write {__version__}"
    yield Line(cited is not None and cited[1] == __version__, f"CITATION.cff: version {__version__}", write)
    told = re.search(rf"^## \[{re.escape(__version__)}\]", (root / "CHANGELOG.md").read_text("utf-8"), re.M)
    left = len(list((root / "changelog.d").glob("*.*.md")))
    section = f"CHANGELOG.md: a section for {__version__}, no fragment left in changelog.d/"
    yield Line(told is not None and not left, section, write)
    yield Line(not owed(), "every text has its Chinese", ".venv/bin/python -m tests.generate --untranslated")
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    address = ".venv/bin/python -m tests.release --address URL   # where the repository is published"
    yield Line(bool(project.get("urls")), "pyproject.toml: [project.urls]", address)
    yield Line(not proofs.changed("HEAD", root), "everything is committed", "git status")


def held(root: Path = ROOT) -> Iterator[Line]:
    """Each proof: whether it passed on these very files."""
    known, now = proofs.known(root / "data" / "proofs.csv"), proofs.content(root)
    committed = not proofs.changed("HEAD", root)
    for name, command in PROOFS.items():
        remedy = f".venv/bin/python -m tests.release --run {name}   # {command}"
        ran = known.get(name)
        if ran is None:
            yield Line(False, f"{name}: never recorded", remedy)
            continue
        passed = f"{name}: passed on {ran.commit}, {ran.date}"
        if committed and ran.content == now:
            yield Line(True, passed, remedy)
            continue
        differs = proofs.changed(ran.commit, root)
        since = "not a commit of this repository" if differs is None else f"{len(differs)} files differ since"
        yield Line(False, f"{passed}; {since}", remedy)


def run(names: Iterable[str]) -> int:
    """Run proofs; each is recorded if it passes and everything is committed. The first that fails ends it."""
    for name in names:
        if differs := proofs.changed("HEAD"):
            print(f"not run: {', '.join(differs[:5])} differ from the last commit", file=sys.stderr)
            return 2
        if ended := subprocess.run(PROOFS[name], shell=True, cwd=ROOT).returncode:
            return ended
        proofs.record(name)
    return 0


def build() -> int:
    """Build and check; the sums are those of the files in ``dist/``."""
    date = built.epoch()
    with tempfile.TemporaryDirectory() as folder:
        try:
            sums = built.build(Path(folder), date)
            built.check(Path(folder))
        except built.Refused as error:
            print(error, file=sys.stderr)
            return 1
        (ROOT / "dist").mkdir(exist_ok=True)
        for name in sums:
            (ROOT / "dist" / name).write_bytes(Path(folder, "1", name).read_bytes())
    print(f"SOURCE_DATE_EPOCH={date}")
    print(*(f"{sum_}  dist/{name}" for name, sum_ in sums.items()), sep="\n")
    return 0


def write(version: str, address: str) -> int:
    """Write a release into the files, and say what is left to a person."""
    try:
        writing.write(version, datetime.date.today().isoformat(), address)
    except built.Refused as error:
        print(error, file=sys.stderr)
        return 1
    print(f"written; now: git commit --all --message 'chore: release {version}' && git tag v{version}")
    return 0


def move(address: str) -> int:
    """Write where the repository is published."""
    try:
        writing.move(address)
    except built.Refused as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def main() -> int:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tests.release", description=__doc__, formatter_class=style)
    parser.add_argument("--run", nargs="+", choices=tuple(PROOFS), metavar="PROOF", help=", ".join(PROOFS))
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--write", metavar="X.Y.Z", help="the release that this becomes")
    parser.add_argument("--address", default="", metavar="URL", help="of the public repository")
    asked = parser.parse_args()
    if asked.run:
        return run(asked.run)
    if asked.build:
        return build()
    if asked.write:
        return write(asked.write, asked.address)
    if asked.address:
        return move(asked.address)
    try:
        ready, ran = list(readiness()), list(held())
    except table.Broken as error:
        print(error, file=sys.stderr)
        return 2
    print(f"vlmpatch {__version__} on {proofs.head()}")
    for heading, lines in (("Written", ready), ("Proofs, each on the files as they are now", ran)):
        print(f"\n{heading}")
        for line in lines:
            print(f"  {'done' if line.good else 'OPEN'}  {line.words}")
            if not line.good:
                print(f"        {line.remedy}")
    left = sum(not line.good for line in (*ready, *ran))
    print(f"\n{left} open: not ready to be tagged" if left else "\nready to be tagged")
    return min(left, 1)


if __name__ == "__main__":
    sys.exit(main())
