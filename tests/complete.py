"""What a contribution still lacks, all of it at once, each line with its file and key.

``python -m tests.complete`` prints it; ``tests/unit/test_complete.py`` wants nothing there.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab import envs
from tests.matrix import rows
from vlmpatch.catalog import read as catalog
from vlmpatch.catalog.model import Catalog, Entry, Problem
from vlmpatch.gate.verdict import ranges
from vlmpatch.tools import cases
from vlmpatch.tools.explain import failures

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
BLANK = "FILL IN"
# In the order in which one can know them: what is seen and how, the patch, its gate, what users are told.
FILLED = ("failures/*.toml", "cases/*.toml", "patches/[a-z]*/*.py", "compat.toml", "changelog.d/*.*.md")
# What the docstring of every patch says, and how that is told.
PARTS = {
    "why it happens, as `Why: …`": r"\bWhy\b",
    "since and until which version": r"\d+\.\d+|\b[Ee]very\b",
    "what is done, as `The change: …`": r"The change|What is done",
    "upstream's issue or pull request": r"https://",
}


class Lack(NamedTuple):
    """Something missing: in which file, under which key, and what."""

    file: str
    key: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.key}: {self.what}"


def missing(root: Path = ROOT) -> list[Lack]:
    """All that is blank, unsound or absent below ``root``."""
    failures.read.cache_clear()  # files may have been laid out since
    known = catalog.read(str(root / "compat.toml"))
    written = tomllib.loads((root / "compat.toml").read_text("utf-8"))["patch"]
    ids = [entry["id"] for entry in written if isinstance(entry.get("id"), str)]
    blank = list(_blanks(root))
    return [*blank, *_unsound(root, known, ids, blank), *_absent(root, known, ids, blank)]


def _blanks(root: Path) -> Iterator[Lack]:
    for pattern in FILLED:
        for path in sorted(root.glob(pattern)):
            for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
                if BLANK in line:
                    before, _, what = line.partition(BLANK)
                    key = re.match(r"\W*(\w[\w ]*?)\s*([:=(]|$)", before)
                    where = f"{path.relative_to(root)}:{number}"
                    yield Lack(where, key[1] if key else "text", what.strip(' :"]},.'))


def _unsound(root: Path, known: Catalog, ids: list[str], blank: list[Lack]) -> Iterator[Lack]:
    """What the readers object to, unless it is a blank, or what follows from one."""
    told = {(lack.file.partition(":")[0], lack.key) for lack in blank}
    follows = [f"there is no patch {id_!r}" for id_ in ids if id_ not in known.entries]
    read = failures.read(known.path).problems, cases.read(known).problems, known.problems, ranges(known)
    for problem in (problem for problems in read for problem in problems):
        file, *within = _place(root, problem)
        key = within[-1].partition(".")[0] if within else _first_word(problem.what)
        if (file, key) not in told and problem.what not in follows:
            yield Lack(file, ", ".join(within) or "file", f"{problem.what}. {problem.remedy}")


def _place(root: Path, problem: Problem) -> list[str]:
    """The file as seen from ``root``, and the keys within it."""
    return problem.where.removeprefix(f"{root}/").split(", ")


def _first_word(text: str) -> str:
    return text.partition(" ")[0]


def _absent(root: Path, known: Catalog, ids: list[str], blank: list[Lack]) -> Iterator[Lack]:
    shown = cases.read(known).known.values()
    blank_files = {lack.file.partition(":")[0] for lack in blank}
    for path in sorted(root.glob("patches/[a-z]*/[a-z]*.py")):
        name = str(path.relative_to(root))
        if path.stem.replace("_", "-") not in ids:
            yield Lack("compat.toml", "id", f"a [[patch]] for {name}, called {path.stem.replace('_', '-')}")
        yield from _unwritten(name, path.read_text("utf-8"), name in blank_files)
    for entry in known.entries.values():
        yield from _unknown_failures(root, entry)
        file = f"cases/{entry.module.partition('.')[0]}.toml"
        if file not in blank_files and not ranges(known._replace(entries={entry.id: entry})):
            yield from _unproven(file, entry, [case for case in shown if case.patch == entry.id])
    for id_ in ids:
        if not _announced(root, id_):
            yield Lack(f"changelog.d/{id_}.added.md", "text", f"a paragraph for users that names `{id_}`")


def _unwritten(name: str, source: str, has_blanks: bool) -> Iterator[Lack]:
    """What a patch file does not define, or its docstring does not say."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        yield Lack(f"{name}:{error.lineno}", "file", f"is no Python: {error.msg}")
        return
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for function in ("look", "apply"):
        if function not in defined:
            yield Lack(name, function, "there is no such function")
    said = ast.get_docstring(tree) or ""
    for part, pattern in PARTS.items():
        if not has_blanks and not re.search(pattern, said):
            yield Lack(name, "docstring", part)


def _unknown_failures(root: Path, entry: Entry) -> Iterator[Lack]:
    known = failures.read(str(root / "compat.toml"))
    files = {path.stem for path in (root / "failures").glob("*.toml")}
    for id_ in entry.failures:
        number = re.fullmatch(r"F(\d+)", id_)
        name = f"F{int(number[1]):02}" if number else id_
        if id_ not in known.known and name not in files:
            yield Lack(f"failures/{name}.toml", "id", f"{entry.id} ends {id_}, and there is no such file")


def _unproven(file: str, entry: Entry, own: list[cases.Case]) -> Iterator[Lack]:
    """What shows that the patch is needed: a run that it decides, on a stack where its gate is open."""
    if not own:
        yield Lack(file, "patch", f'a [[case]] with patch = "{entry.id}"')
        return
    stacks: dict[str, Any] = envs.read_stacks()
    named = dict.fromkeys(stack for case in own for stack in (*case.proof, *case.slow))
    if not named:
        yield Lack(file, "proof", f"the stack on which a case of {entry.id} proves that it is needed")
    for stack in named:
        if stack not in stacks:
            yield Lack(file, "proof", f"{entry.id} names {stack}, which is no stack of tests/stacks/")
        elif not rows.holds(entry.requires, rows.versions(stacks[stack])):
            yield Lack(file, "proof", f"{entry.id} names {stack}, where the gate is closed")


def _announced(root: Path, id_: str) -> bool:
    pages = [root / "CHANGELOG.md", *(root / "changelog.d").glob("*.*.md")]
    return any(f"`{id_}`" in path.read_text("utf-8") for path in pages)


def told(lacks: list[Lack]) -> str:
    """A numbered list."""
    return "\n".join(f"{number:3}. {lack}" for number, lack in enumerate(lacks, 1))


def main() -> int:
    """Print what is missing; exit status 1 where there is anything."""
    lacks = missing()
    print(told(lacks) or "nothing is missing")
    return 1 if lacks else 0


if __name__ == "__main__":
    sys.exit(main())
