"""What the matrix runs (``cases/``), and on what (``tests/stacks/``)."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests.lab.envs import Stack
from tests.standin.cells import Cell as Script
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read as read_catalog
from vlmpatch.tools import cases
from vlmpatch.tools.cases import Case

Versions = Mapping[str, str]
ZERO_OVER_GLOO = {"torch": ">=2.2"}  # before, gloo had no _allgather_base
# The first that a stack pins is what it is for.
FRAMEWORKS = ("pytorch-lightning", "axolotl", "llamafactory", "ms-swift", "trl", "timm")


@functools.cache
def every() -> dict[str, Case]:
    """Every case by its id.

    Raises:
        ValueError: one of them is not as it should be; the text has all that is wrong.
    """
    found = cases.read(read_catalog(default_path()))
    if found.problems:
        raise ValueError("\n".join(map(str, found.problems)))
    return found.known


def read() -> dict[str, Case]:
    """The rows of the matrix by id: the cases that are tried on every stack that can run them."""
    return {id_: case for id_, case in every().items() if case.matrix}


def script(case: Case) -> Script | None:
    """The run of MiniCPM-V's fine-tune script that a case asks for, if it does."""
    return Script.of(case.settings) if case.how == "script" else None


def runs_on(case: Case, stack: Stack) -> bool:
    """Whether the stack is a column, has what the case needs, and no framework it does not ask for."""
    installed = versions(stack)
    zero = (script(case) or case.cell).engine.startswith("zero")
    able = holds(case.only, installed) and (not zero or holds(ZERO_OVER_GLOO, installed))
    return able and stack.matrix and case.framework == framework(stack)


def versions(stack: Stack) -> dict[str, str]:
    """What the stack pins, by distribution."""
    pins = (pin.partition("==") for pin in (stack.torch, *stack.packages, *stack.no_deps) if "==" in pin)
    return {name.lower().replace("_", "-"): version for name, _, version in pins}


def framework(stack: Stack) -> str:
    """The framework a stack is there for, or nothing."""
    installed = versions(stack)
    return next((name for name in FRAMEWORKS if name in installed), "")


def holds(ranges: Mapping[str, str], installed: Versions) -> bool:
    """Whether every range holds; a package that is not installed lies in none."""
    return all(
        name in installed and SpecifierSet(text).contains(Version(installed[name]), prereleases=True)
        for name, text in ranges.items()
    )
