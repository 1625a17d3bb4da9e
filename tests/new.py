"""python -m tests.new UPSTREAM ID --failure F4|new

Lay out a patch: its file, its entry in compat.toml, a case that shows the bug, a changelog fragment, and a
file of failures/ where the failure is new. What is to be written is marked FILL IN, and listed in the order
to go by.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

from tests import complete
from vlmpatch.catalog import read as catalog
from vlmpatch.catalog.location import patch_modules, upstreams
from vlmpatch.catalog.model import Catalog
from vlmpatch.tools.explain import failures
from vlmpatch.tools.templates import CASE, ENTRY, FAILURE, PATCH

CASES = """\
# {upstream}.
# CONTRIBUTING.md explains the keys.
"""
FRAGMENT = "`{id}` ({failure}): FILL IN: what happened to users, and what happens now.\n"


class Refused(Exception):
    """What is asked for cannot be laid out, and why."""


def lay_out(root: Path, upstream: str, id_: str, failure: str) -> list[Path]:
    """Write everything a new patch consists of.

    Args:
        root: the checkout.
        upstream: the folder of ``patches/`` it belongs to.
        id_: the patch's.
        failure: the one it ends, or ``new``.

    Returns:
        The files written or added to.

    Raises:
        Refused: the upstream or the failure is unknown, or the id is bad or taken.
    """
    known = catalog.read(str(root / "compat.toml"))
    _check(root, upstream, id_)
    failure, made = _failure(root, failure)
    given = {"id": id_, "upstream": upstream, "failure": failure}
    given["distribution"] = _distribution(known, upstream)
    patch = root / "patches" / upstream / f"{id_.replace('-', '_')}.py"
    shown = root / "cases" / f"{upstream}.toml"
    earlier = shown.read_text("utf-8") if shown.exists() else CASES.format(**given)
    made[shown] = _before_the_rest(earlier, CASE.format(**given))
    made[patch] = PATCH
    made[root / "compat.toml"] = _after_its_kin(known, upstream, ENTRY.format(**given))
    made[root / "changelog.d" / f"{id_}.added.md"] = FRAGMENT.format(**given)
    for path, text in made.items():
        path.write_text(text, "utf-8")
    return list(made)


def _check(root: Path, upstream: str, id_: str) -> None:
    folders = upstreams(str(root / "patches"))
    if upstream not in folders:
        start = f"to begin with another, make patches/{upstream}/__init__.py with a docstring"
        raise Refused(f"there is no patches/{upstream}/; known: {', '.join(folders)}; {start}")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", id_):
        raise Refused(f"{id_!r} is no id; use a-z, 0-9 and single hyphens, as zero3-lost-inputs")
    if taken := patch_modules(str(root / "patches")).get(id_):
        raise Refused(f"{id_} is taken: patches/{taken[0].replace('.', '/')}.py")
    for name in ("compat.toml", *(f"cases/{path.name}" for path in sorted((root / "cases").glob("*.toml")))):
        if f'\nid = "{id_}"\n' in (root / name).read_text("utf-8"):
            raise Refused(f"{id_} is taken: {name} has it")


def _failure(root: Path, asked: str) -> tuple[str, dict[Path, str]]:
    """The failure's id, and its file where it is new: a number is given once, so gaps stay."""
    known = failures.read(str(root / "compat.toml"))
    if asked != "new":
        found = known.called(asked)
        if found is None or found.foreign:
            raise Refused(
                f"there is no failure {asked}; `python -m vlmpatch explain LOG` names it, or say: new"
            )
        return found.id, {}
    numbers = [int(path.stem[1:]) for path in (root / "failures").glob("F[0-9]*.toml")]
    number = max(numbers) + 1
    order = max(each.order for each in known.known.values() if not each.foreign) + 10
    path = root / "failures" / f"F{number:02}.toml"
    return f"F{number}", {path: FAILURE.format(failure=f"F{number}", order=order)}


def _distribution(known: Catalog, upstream: str) -> str:
    """What the gates of the upstream's patches ask for most; its own name where it has none yet."""
    kin = [entry for entry in known.entries.values() if entry.module.startswith(f"{upstream}.")]
    named = Counter(name for entry in kin for name in entry.requires)
    return named.most_common(1)[0][0] if named else upstream


def _after_its_kin(known: Catalog, upstream: str, entry: str) -> str:
    """``compat.toml`` with ``entry`` after the last one of its upstream."""
    head, *entries = re.split(r"(?m)^(?=\[\[patch\]\])", Path(known.path).read_text("utf-8"))
    ids = [each.id for each in known.entries.values() if each.module.startswith(f"{upstream}.")]
    kin = [number for number, text in enumerate(entries) if any(f'id = "{id_}"\n' in text for id_ in ids)]
    last = kin[-1] if kin else len(entries) - 1
    own, _, comment = entries[last].partition("\n#")  # the heading of what follows stays with it
    after = f"#{comment}" if comment else ""
    entries[last] = f"{own.rstrip()}\n\n{entry}\n{after}"
    return f"{head}{''.join(entries).rstrip()}\n"


def _before_the_rest(text: str, case: str) -> str:
    """``text`` with ``case`` after the last one of the matrix, before a heading."""
    before, heading, rest = text.partition("\n# ---")
    return f"{before.rstrip()}\n\n{case}{heading}{rest}"


def main() -> int:
    """Lay it out; say what was written and what is to be filled in."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.new", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("upstream", help="a folder of patches/")
    parser.add_argument("id", help="kebab-case, named by what is fixed; users type it")
    parser.add_argument(
        "--failure", required=True, help="the failure it fixes, as `explain` names it, or: new"
    )
    asked = parser.parse_args()
    try:
        written = lay_out(complete.ROOT, asked.upstream, asked.id, asked.failure)
    except Refused as error:
        parser.error(str(error))
    print("written:", *(f"  {path.relative_to(complete.ROOT)}" for path in written), sep="\n")
    print("to fill in, in this order (`python -m tests.complete` says what is left):")
    print(complete.told(complete.missing()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
