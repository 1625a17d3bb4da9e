"""What the engine, the gates and the patches say in English, which ``reasons.zh.toml`` has in Chinese."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from vlmpatch.engine.outlook import NOT_HERE
from vlmpatch.tools.view import reasons

CHECKOUT = Path(__file__).resolve().parents[2]
# Where something is said that a view shows, and what makes it: a call, and which of its arguments are words.
SAID = {
    "vlmpatch/gate/verdict.py": {"Verdict": [1], "Status": [2], "Fault": [0, 1], "seen.append": [0]},
    "vlmpatch/gate/source.py": {"NoSource": [0]},
    "vlmpatch/gate/reads.py": {"Unrecognised": [0], "ValueError": [0]},
    "vlmpatch/engine/outlook.py": {"Status": [2]},
    "vlmpatch/catalog/environment.py": {"Problem": [1, 2]},
    "vlmpatch/catalog/read.py": {"Problem": [1, 2], "_Invalid": [1, 2]},
    "vlmpatch/lockfile/lock.py": {"Unreadable": [1, 2]},
}
RETURNED = {
    "vlmpatch/tools/doctor/verified.py": "sentence",
    "vlmpatch/tools/doctor/installation.py": "sentence",
    "vlmpatch/tools/run.py": "deaf",
    "vlmpatch/engine/locked.py": "_became",
}
ASSIGNED = {
    "vlmpatch/gate/versions.py": ("remark", "several"),
    "vlmpatch/tools/doctor/packages.py": ("remark",),
    "vlmpatch/engine/outlook.py": ("reason",),
    "vlmpatch/engine/switches.py": ("BY_ENVIRONMENT", "UNDONE", "PAUSED"),
    "vlmpatch/catalog/environment.py": ("what", "remedy", "OUTDATED"),
    "vlmpatch/catalog/read.py": ("what",),
    "vlmpatch/lockfile/lock.py": ("_AGAIN", "what"),
    "vlmpatch/tools/view/usage.py": ("OF_ARGPARSE",),
}


def words(node: ast.AST | None) -> Iterator[str]:
    """The sentences of an expression, with ``{}`` for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    elif isinstance(node, ast.IfExp):
        yield from (*words(node.body), *words(node.orelse))
    elif isinstance(node, ast.Tuple):
        yield from (each for value in node.elts for each in words(value))
    elif isinstance(node, ast.BoolOp):
        yield from (each for value in node.values for each in words(value))


def returned(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Return):
            yield from words(node.value)


def says_why(function: ast.FunctionDef) -> bool:
    """Whether it is a patch's ``look``, or helps one: it returns why a patch is not needed, or nothing."""
    wanted = {"str", "None"}
    return function.returns is not None and set(re.findall(r"\w+", ast.unparse(function.returns))) == wanted


def of_patches(folder: Path = CHECKOUT) -> Iterator[tuple[Path, str]]:
    """Every clause of a patch's ``look``, with the patch's file; ``folder`` holds ``patches/``."""
    for path in sorted((folder / "patches").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and says_why(node):
                yield from ((path, each) for said in returned(node) for each in clauses(said))
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "Unrecognised":
                yield from ((path, each) for said in words(node.args[0]) for each in clauses(said))


def of_others() -> Iterator[str]:
    """Every clause of the engine's, the gates' and the tools' sentences."""
    for name in {*SAID, *RETURNED, *ASSIGNED}:
        for node in ast.walk(ast.parse((CHECKOUT / name).read_text())):
            yield from (each for said in _said(name, node) for each in clauses(said))


def _said(name: str, node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call) and (places := SAID.get(name, {}).get(ast.unparse(node.func))):
        yield from (each for place in places if place < len(node.args) for each in words(node.args[place]))
    elif isinstance(node, ast.FunctionDef) and node.name == RETURNED.get(name):
        yield from returned(node)
    elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ASSIGNED.get(name, ()):
        yield from words(node.value)


def clauses(sentence: str) -> list[str]:
    """Those that have words of their own, as ``reasons.zh.toml`` has them; a bare field has none."""
    whole = re.sub(r"^\{\}(?=[A-Z`])", "", sentence)  # what `environment.suggestion` puts before a remedy
    joined = reasons.SPLIT.split(whole.replace("{}{}", "{}" + NOT_HERE))[::2]
    return [each for each in joined if re.search(r"[A-Za-z]{2}", each)]
