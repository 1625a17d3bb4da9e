"""A model's own code, recognised by what it does; it is parsed and never run."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from vlmpatch.support import files as files_

NEWEST = 12  # files of the cache that are looked at
LARGEST = 1 << 20
_IN_PLACE = ("scatter_", "masked_scatter_", "index_copy_")


class Trait(NamedTuple):
    """Something a file does: a name for it, and the line."""

    name: str
    line: int


def cache(environ: Mapping[str, str]) -> str:
    """The folder where transformers keeps the code of remote models."""
    home = environ.get("HF_HOME") or os.path.join(
        environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "huggingface"
    )
    return os.path.join(
        environ.get("HF_MODULES_CACHE") or os.path.join(home, "modules"), "transformers_modules"
    )


def files(folder: str) -> list[str]:
    """The newest Python files below ``folder`` that build a model."""
    found: list[tuple[float, str]] = []
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            if name.endswith(".py") and name != "__init__.py" and os.path.getsize(path) <= LARGEST:
                found.append((os.path.getmtime(path), path))
    return [path for _, path in sorted(found, reverse=True)[:NEWEST]]


def traits(path: str) -> list[Trait]:
    """What the file at ``path`` does that checkpointing or a newer transformers breaks on."""
    try:
        source = files_.read(path, LARGEST)
        if "checkpoint" not in source and "PreTrainedModel" not in source and "scatter_" not in source:
            return []
        return sorted(set(_traits(ast.parse(source))), key=lambda trait: trait.line)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _traits(tree: ast.Module) -> Iterator[Trait]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "_set_gradient_checkpointing":
            if "value" in [argument.arg for argument in node.args.args]:
                yield Trait("old-format", node.lineno)
        elif isinstance(node, ast.ClassDef) and _builds_a_model(node):
            yield Trait("no-post-init", node.lineno)
        elif isinstance(node, ast.Call):
            yield from _call(node)


def _call(node: ast.Call) -> Iterator[Trait]:
    name = ast.unparse(node.func)
    if name == "checkpoint" or name.endswith(".checkpoint.checkpoint") or name.endswith("checkpoint_fn"):
        said = {word.arg: word.value for word in node.keywords}
        value = said.get("use_reentrant")
        if "use_reentrant" not in said and None not in said:
            yield Trait("reentrant-by-default", node.lineno)
        elif isinstance(value, ast.Constant) and value.value is True:
            yield Trait("says-reentrant", node.lineno)
    elif (
        isinstance(node.func, ast.Attribute)
        and node.func.attr in _IN_PLACE
        and "emb" in ast.unparse(node.func)
    ):
        yield Trait("writes-into-embeddings", node.lineno)


def _builds_a_model(node: ast.ClassDef) -> bool:
    bases = [ast.unparse(base) for base in node.bases]
    init = next((each for each in node.body if getattr(each, "name", "") == "__init__"), None)
    return (
        init is not None
        and any(base.endswith("PreTrainedModel") for base in bases)
        and "post_init" not in ast.unparse(init)
    )
