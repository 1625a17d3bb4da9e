"""What every patch reads of an upstream's objects by name: ``python -m tests.matrix.reads`` records it.

Of the names that stand in a patch those are kept that stand in its target's source too, on the newest stack
on which it acts; ``patches/reads.json`` is for ``vlmpatch/gate/reads.py``. What was recorded of a stack that
is not made here stays. ``--inside`` is what runs with a stack's interpreter.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import cache
from inspect import BoundArguments, Parameter
from pathlib import Path
from re import Match, Pattern
from threading import Event, Thread
from typing import Any

from packaging.version import Version

from tests.lab import envs, launch
from tests.lab.waits import completed
from tests.matrix import drift, store
from vlmpatch import api
from vlmpatch.catalog.location import patch_path
from vlmpatch.gate.reads import CHAINS, FILE
from vlmpatch.gate.source import locate, of_file
from vlmpatch.lockfile.revision import Revisions

PATCHES = store.ROOT / "patches"
RECORD = PATCHES / FILE
DIGESTS = "read"  # of each patch: a digest of what was read from its files
_USED = re.compile(r"(?:\.|\bdef |\bclass )([^\W\d]\w*)|^\s*([^\W\d]\w*)\s*[:=]", re.M)


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        print(json.dumps({"known": sorted(_known()), "words": _words(sys.argv[2:])}))
        return 0
    record = recorded()
    record["tested"] = {name: str(version) for name, (version, _) in newest().items()}
    wanted = {module: dict(_wanted(module)) for module in modules()}
    record["reads"] = {module: record["reads"].get(module, {}) for module in wanted}
    for stack in sorted({stack for targets in wanted.values() for stack in targets.values()}):
        if envs.read_stacks()[stack].complete:
            _record_of(stack, wanted, record["reads"])
            print(f"recorded what is read on {stack}", flush=True)
    found = {module: {name: it for name, it in its.items() if it} for module, its in record["reads"].items()}
    record["reads"] = {module: its for module, its in found.items() if its}
    record[DIGESTS] = {module: digest(module) for module, targets in wanted.items() if targets}
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return 0


def recorded() -> dict[str, Any]:
    """What is on record."""
    found: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {"tested": {}, "reads": {}}
    return found


# --- what patches read ----------------------------------------------------------------------------------


def modules() -> list[str]:
    return sorted(entry.module for entry in store.entries().entries.values())


@cache
def read_by(module: str) -> tuple[frozenset[str], frozenset[str]]:
    """What patch ``module`` and its helpers read: attributes of others' objects, and chains from torch.

    Of what helpers read that which is private: the rest is mostly of other objects than the target's.
    """
    names, chains = _of_file(patch_path(str(PATCHES), module))
    for helper in _revisions().used_by(module):
        more, others = _of_file(patch_path(str(PATCHES), helper))
        names, chains = names | set(filter(_is_private, more)), chains | others
    return names, chains


def digest(module: str) -> str:
    """12 hex digits over what it reads."""
    return hashlib.sha256(repr([sorted(each) for each in read_by(module)]).encode()).hexdigest()[:12]


@cache
def _revisions() -> Revisions:
    return Revisions(str(PATCHES))


@cache
def _of_file(path: str) -> tuple[frozenset[str], frozenset[str]]:
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    ours = {"torch", *_imported(tree)}
    names, chains = set(), set()
    for node in _outside_look(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            chain = _chain(node)
            if chain is None or chain[0] not in ours:
                names.add(node.attr)
            elif chain[0] == "torch" and any(_is_private(part) for part in chain):
                chains.add(".".join(chain))
    return frozenset(name for name in names if not name.startswith("__")), frozenset(_longest(chains))


def _outside_look(tree: ast.Module) -> Iterator[ast.AST]:
    for statement in tree.body:
        if getattr(statement, "name", "") != "look":
            yield from ast.walk(statement)


def _imported(tree: ast.Module) -> Iterator[str]:
    """Names that are a module of Python's, or something of one."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                source = node.module or "." if isinstance(node, ast.ImportFrom) else alias.name
                if source.partition(".")[0] in {*sys.stdlib_module_names, ""} or isinstance(node, ast.Import):
                    yield (alias.asname or alias.name).partition(".")[0]


def _chain(node: ast.expr) -> list[str] | None:
    if isinstance(node, ast.Name):
        return [node.id]
    before = _chain(node.value) if isinstance(node, ast.Attribute) else None
    return [*before, node.attr] if before is not None and isinstance(node, ast.Attribute) else None


def _longest(chains: Iterable[str]) -> set[str]:
    chains = set(chains)
    return {chain for chain in chains if not any(other.startswith(f"{chain}.") for other in chains)}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@cache
def _own() -> frozenset[str]:
    """What objects of ``patches/`` and of ``vlmpatch.api`` have."""
    found = {name for each in (api.Patch, api.Argument, api.Code, api.Function) for name in dir(each)}
    found |= {*vars(api.Code("", "", "")), *vars(api.Function(""))}
    for path in PATCHES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found |= {node.attr} if ast.unparse(node.value) == "self" else set()
    return frozenset(found)


# --- where it stands ------------------------------------------------------------------------------------


@cache
def _shapes() -> dict[str, drift.Probe]:
    return drift.shapes()


@cache
def newest() -> dict[str, tuple[Version, str]]:
    """Of each distribution that patches change: the newest release on record, and a stack that has it."""
    found: dict[str, tuple[Version, str]] = {}
    for stack, probe in _shapes().items():
        for name, text in probe["versions"].items():
            version = Version(Version(text).public)
            if name not in found or version >= found[name][0]:
                found[name] = version, stack
    return found


def _wanted(module: str) -> Iterator[tuple[str, str]]:
    """Each target that patch ``module`` acts on in the newest release, and the stack that has it."""
    entry = next(entry for entry in store.entries().entries.values() if entry.module == module)
    for target in entry.targets:
        owner = drift.owner(target)
        if owner not in newest():
            continue
        stack = newest()[owner][1]
        probe = _shapes()[stack]["patches"].get(entry.id)
        if probe and probe["gate"] and probe["targets"].get(target, {}).get("says") == "bug":
            yield target, stack


def stale() -> list[str]:
    """The patches, and the distributions, whose record is not of today."""
    record = recorded()
    digests = {module: digest(module) for module in modules() if dict(_wanted(module))}
    tested = {name: str(version) for name, (version, _) in newest().items()}
    known = {**record.get(DIGESTS, {}), **record["tested"]}
    today = {**digests, **tested}
    return sorted(name for name in {*known, *today} if known.get(name) != today.get(name))


def _record_of(stack: str, wanted: dict[str, dict[str, str]], reads: dict[str, dict[str, Any]]) -> None:
    targets = sorted({target for each in wanted.values() for target, its in each.items() if its == stack})
    made = envs.read_stacks()[stack]
    command = [str(made.python), "-m", "tests.matrix.reads", "--inside", *targets]
    done = completed(command, limit=300, env=dict(launch.environment(made)), cwd=store.ROOT)
    if done.returncode:
        raise SystemExit(done.stderr)
    inside = json.loads(done.stdout.splitlines()[-1])
    for module, its in wanted.items():
        names, chains = read_by(module)
        for target in (target for target, where in its.items() if where == stack):
            foreign = names - _own() - set(inside["known"])
            reads[module][target] = sorted(foreign & set(inside["words"][target]))
        if its and chains:
            reads[module][CHAINS] = sorted(chains)


def _words(targets: Iterable[str]) -> dict[str, list[str]]:
    """What each target reads of an object, or defines."""
    texts = {target: of_file(target, locate(target) or "").source for target in targets}
    return {target: sorted({*map("".join, _USED.findall(text))}) for target, text in texts.items()}


def _known() -> set[str]:
    """What torch, Python and every model show of themselves: no release takes it away in silence."""
    import torch
    from transformers import PreTrainedModel

    shown = (
        PreTrainedModel,
        torch,
        torch.nn,
        torch.autograd,
        torch.distributed,
        torch.Tensor,
        torch.nn.Module,
        torch.device,
    )
    python = (dict, list, set, str, tuple, type, BaseException, ExitStack, Thread, Event, Pattern, Match)
    names = {name for each in (*shown, *python, Parameter, BoundArguments) for name in dir(each)}
    # Of torch's own private names the chains speak.
    return {name for name in names if not _is_private(name)} | {*dir(torch), *dir(torch.autograd.Variable)}


if __name__ == "__main__":
    sys.exit(main())
