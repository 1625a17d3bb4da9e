"""Whatever vlmpatch says to other ranks is on one list, with what happens when one of them does not come."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = ("docs/collectives.md", "docs/zh-CN/collectives.md")
# Of torch.distributed and of its stores, and those of ours and DeepSpeed's that call them.
OF_DISTRIBUTED = re.compile(
    r"(all_)?(reduce|gather)(_\w+)?|reduce_scatter\w*|scatter\w*|broadcast\w*|all_to_all\w*|\w*barrier"
    r"|i?send|i?recv|new_group|batch_isend_irecv"
)
DISTRIBUTED = {"dist", "distributed", "deepspeed", "comm"}
OF_STORE = {
    "set",
    "get",
    "add",
    "check",
    "wait",
    "compare_set",
    "multi_get",
    "multi_set",
    "append",
    "delete_key",
}
CALLERS = {
    "largest",
    "largest_of_each",
    "reduced_to_largest",
    "somewhere",
    "rendezvous",
    "attend",
    "whole",
    "job_store",
    "_get_default_store",
}
CALLERS |= {
    "gathered",
    "GatheredParameters",
    "RankMonitor",
    "Exchange",
    "Backward",
    "ask_everywhere",
    "gather_object",
}


def calls(tree: ast.AST, within: str = "") -> Iterator[str]:
    """The function, by its whole name, of each call that other ranks notice."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from calls(node, f"{within}.{node.name}".removeprefix("."))
            continue
        if isinstance(node, ast.Call) and communicates(node.func):
            yield within
        yield from calls(node, within)


def communicates(function: ast.expr) -> bool:
    name = last_name(function)
    if name in CALLERS:
        return True
    holder = last_name(function.value) if isinstance(function, ast.Attribute) else ""
    return (holder in DISTRIBUTED and bool(OF_DISTRIBUTED.fullmatch(name))) or (
        holder.removeprefix("_") == "store" and name in OF_STORE
    )


def last_name(node: ast.expr) -> str:
    """Its last: ``store`` of ``self.store``, ``distributed`` of ``modules["torch.distributed"]``."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Subscript):  # vars(module)["GatheredParameters"]
        return str(getattr(node.slice, "value", "")).rpartition(".")[2]
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def found() -> set[str]:
    files = [path for top in ("patches", "vlmpatch") for path in (CHECKOUT / top).rglob("*.py")]
    return {
        f"{path.relative_to(CHECKOUT)}: {function}"
        for path in files
        for function in calls(ast.parse(path.read_text(encoding="utf-8")))
    }


@pytest.mark.parametrize("page", PAGES)
def test_every_exchange_is_on_the_list(page: str) -> None:
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    listed = set(re.findall(r"`((?:patches|vlmpatch)/[\w/]+\.py: [\w.]+)`", text))
    assert found() - listed == set(), (
        f"say in {page} when, over which group, and what if a rank does not come"
    )
    assert listed - found() == set(), f"{page} lists what is no longer there"


@pytest.mark.parametrize(
    "line",
    [
        *(
            "dist.all_reduce(x)",
            "torch.distributed.barrier()",
            "module.dist.broadcast(x, 0)",
            "dist.isend(x, 1)",
        ),
        *("self.store.set(1, 2)", "_store().get(1)", "self.monitor.store.multi_get(x)", "largest(1, g, d)"),
    ],
)
def test_what_counts_as_one(line: str) -> None:
    assert list(calls(ast.parse(f"def sends():\n    return {line}"))) == ["sends"]


def test_what_does_not() -> None:
    text = "def sends():\n    known.get(1), kept.set(2), dist.get_rank(), text.gather(1), lines.send(2)"
    assert list(calls(ast.parse(text))) == []
