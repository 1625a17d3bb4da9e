"""Changes one thing at a time in a copy of vlmpatch and counts what the unit tests notice.

    python -m tests.trust.mutants --sample 40 journal/journal gate/verdict

A mutant survives when every test passes with it; each survivor is printed as the line it was and is.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = {
    "journal/journal": "test_journal test_engine",
    "journal/wrappers": "test_journal test_engine",
    "journal/changes": "test_journal test_engine",
    "journal/overrides": "test_journal test_engine",
    "journal/locations": "test_journal test_engine",
    "support/locks": "test_engine test_finder",
    "api": "test_engine test_interleaved",
    "engine/engine": "test_engine test_interleaved",
    "engine/apply": "test_engine",
    "engine/switches": "test_engine",
    "imports/finder": "test_finder test_engine",
    "imports/remote_code": "test_engine",
    "watch/ranks": "test_ranks",
    "gate/verdict": "test_gate test_engine test_catalog",
}
LIMIT = 300.0  # seconds, for the tests as they are; a mutant that takes many times as long hangs
OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Lt: ast.GtE,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.GtE: ast.Lt,
}


def changed(node: ast.AST) -> bool:
    """Change ``node`` in place, in the one way there is for its kind; False where there is none."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPPOSITE:
        node.ops[0] = OPPOSITE[type(node.ops[0])]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        node.value += 1
    elif isinstance(node, ast.Return | ast.Expr) and isinstance(node.value, ast.expr):
        if isinstance(node.value, ast.Constant):
            return False  # a docstring, or nothing as it is
        node.value = ast.Constant(None)
    else:
        return False
    return True


def mutants(source: str) -> Iterator[tuple[int, str]]:
    """Every mutant of ``source``: the line that was changed, and the whole."""
    tree = ast.parse(source)
    plain = ast.unparse(tree)
    for number, node in enumerate(ast.walk(tree)):
        other = copy.deepcopy(tree)
        same = next(each for place, each in enumerate(ast.walk(other)) if place == number)
        if changed(same):
            text = ast.unparse(ast.fix_missing_locations(other))
            if text != plain:
                yield node.lineno, text  # type: ignore[attr-defined]


def survives(module: str, text: str, folder: Path, limit: float = LIMIT) -> bool:
    """Whether the tests pass with ``text`` in the place of ``module``."""
    (folder / "vlmpatch" / f"{module}.py").write_text(text)
    tests = [f"tests/unit/{name}.py" for name in TESTS[module].split()]
    known = [name for name in tests if (folder / name).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *known]
    # Nothing is read from it: a child of a test that hangs would keep a pipe open after its parent has gone.
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    process = subprocess.Popen(command, cwd=folder, **quiet)  # type: ignore[call-overload]
    try:
        return bool(process.wait(limit) == 0)
    except subprocess.TimeoutExpired:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trust.mutants")
    parser.add_argument("modules", nargs="*", default=list(TESTS))
    parser.add_argument("--sample", type=int, help="so many of each module, by chance; all when not said")
    asked = parser.parse_args()
    total = left = 0
    for module in asked.modules:
        path = ROOT / "vlmpatch" / f"{module}.py"
        source = path.read_text()
        chosen = list(mutants(source))
        if asked.sample is not None:
            chosen = random.Random(module).sample(chosen, min(asked.sample, len(chosen)))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for part in (
                "vlmpatch",
                "patches",
                "failures",
                "cases",
                "tests/unit",
                "tests/trust",
                "tests/lab",
                "tests/families",
            ):
                shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            for part in ("compat.toml", "pyproject.toml", "tests/conftest.py", "tests/__init__.py"):
                shutil.copy(ROOT / part, folder / part)
            began = time.monotonic()
            if not survives(module, source, folder):
                raise SystemExit(f"the tests of {module} fail as it is")
            limit = 20 + 5 * (time.monotonic() - began)
            for line, text in chosen:
                total += 1
                if survives(module, text, folder, limit):
                    left += 1
                    print(
                        f"survives: {module}.py:{line}: {source.splitlines()[line - 1].strip()}", flush=True
                    )
        print(f"{module}: {len(chosen)} mutants", flush=True)
    print(f"noticed: {total - left} of {total}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
