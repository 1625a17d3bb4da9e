"""python -m tests.release              what is ready, and which proofs ran on this commit; 1 until all is
python -m tests.release --run PROOF  hold a proof, and record it
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
from collections.abc import Iterator
from pathlib import Path

from tests.generate.untranslated import owed
from tests.lab import table
from tests.release import built, proofs, writing
from tests.release.proofs import PROOFS, ROOT
from vlmpatch import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def readiness(root: Path = ROOT) -> Iterator[tuple[bool, str]]:
    """What is written for the release: whether it is, and what is to be done else."""
    cited = re.search(r"^version: (\S+)$", (root / "CITATION.cff").read_text("utf-8"), re.M)
    yield cited is not None and cited[1] == __version__, f"CITATION.cff says version: {__version__}"
    told = re.search(rf"^## \[{re.escape(__version__)}\]", (root / "CHANGELOG.md").read_text("utf-8"), re.M)
    left = len(list((root / "changelog.d").glob("*.*.md")))
    remedy = f"{left} fragments left: python -m tests.release --write {__version__}"
    yield told is not None and not left, f"CHANGELOG.md tells of {__version__} ({remedy})"
    yield not owed(), "every text has its Chinese (python -m tests.generate --untranslated)"
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    yield (
        bool(project.get("urls")),
        "pyproject.toml has [project.urls]: --address URL, where the repository is published",
    )
    yield not proofs.changed(proofs.head(root), root), "nothing differs from the last commit"


def held(root: Path = ROOT) -> Iterator[tuple[bool, str]]:
    """Each proof: whether it is of this commit, and where it ran."""
    known = proofs.known(root / "data" / "proofs.csv")
    for name, command in PROOFS.items():
        ran = known.get(name)
        if ran is None:
            yield False, f"{name}: no run is recorded; {command}"
            continue
        differs = proofs.changed(ran.commit, root)
        if differs is None:
            where = f"on {ran.commit}, which is not here"
        elif differs:
            where = f"on {ran.commit}, {ran.date}; {len(differs)} files differ since"
        else:
            where = f"on this commit, {ran.date}"
        yield differs == [], f"{name}: {where}; {command}"


def run(proof: str) -> int:
    """Hold one proof; recorded where it ends with 0 and nothing differs from the commit."""
    if differs := proofs.changed(proofs.head()):
        print(f"not held: {', '.join(differs[:5])} differ from the last commit", file=sys.stderr)
        return 2
    ended = subprocess.run(PROOFS[proof], shell=True, cwd=ROOT).returncode
    if ended == 0:
        proofs.record(proof)
    return ended


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
    parser.add_argument("--run", choices=tuple(PROOFS), metavar="PROOF", help=", ".join(PROOFS))
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
    for heading, rows in (("Written", ready), ("Proved by --run PROOF", ran)):
        print(f"\n{heading}")
        for good, words in rows:
            print(f"  {'done' if good else 'OPEN'}  {words}")
    return 0 if all(good for good, _ in (*ready, *ran)) else 1


if __name__ == "__main__":
    sys.exit(main())
