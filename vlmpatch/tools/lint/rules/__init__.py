"""What is known to go wrong with a launch, one file a rule, which opens with what it warns of.

Another rule is one more file here, with a ``check``, and the text of its code in ``codes.toml``.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator

from vlmpatch.tools.explain.diagnose import printable
from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around
from vlmpatch.tools.lint.launch_config import LaunchConfig

Rule = Callable[[LaunchConfig, Around], Iterator[Finding]]


@functools.cache
def rules() -> tuple[Rule, ...]:
    """The ``check`` of each file beside this one."""
    names = (file.name for file in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}").check for name in names)


def lint(launch: LaunchConfig, around: Around) -> list[Finding]:
    """All findings on ``launch``, in the order of their codes; what could not be read is said last."""
    found = [finding for check in rules() for finding in check(launch, around)]
    title = around.say("This could not be read.")
    problems = [
        Finding("L00", "warning", title, printable(problem.said(around.say))) for problem in launch.problems
    ]
    return [*sorted(found, key=lambda finding: finding.code), *problems]
