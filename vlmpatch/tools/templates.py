"""What a new patch is laid out from; each `FILL IN` says what belongs in its place."""

from __future__ import annotations

PATCH = '''\
"""FILL IN: what is printed, or that nothing is, in a line.

What the user sees: FILL IN: which training, with which settings, ends or goes wrong how.

Why: FILL IN: what upstream's code does, and why that is wrong here.

Since FILL IN: the release that brought it, and until which one, if there is one.

The change: FILL IN: what is done, and what is left alone.

Upstream: FILL IN: the issue, and what ended it
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

NAME = "FILL IN: the function that is fixed"


def look(code: Code) -> str | None:
    """FILL IN: by what in the source the bug is known; a text is returned where it is not there."""
    if code.function(NAME) is None:
        raise Unrecognised(f"{code.module} has no {NAME}")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """FILL IN: what is changed, in a line."""

    def fixed(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)  # FILL IN: what is done differently

    patch.wrap(module, NAME, fixed)
'''
ENTRY = """\
[[patch]]
id = "{id}"
failures = ["{failure}"]
severity = "FILL IN: crash, hang, silent (wrong training, no error) or cost"
summary = "FILL IN: what the user saw, and what is done, in a sentence."
targets = ["FILL IN: the module to wait for, as in an import line"]
requires = {{ {distribution} = "FILL IN: versions that have the bug, as >=1.2,<1.5.dev0" }}
upstream = ["FILL IN: https://… of the issue, and of what ended it"]
"""
CASE = """\
[[case]]
id = "{id}"
patch = "{id}"
cell = {{ engine = "FILL IN: a training that shows it; vlmpatch_lab/cell.py has the fields" }}
fails = "FILL IN: how it ends without the patch: error: REGEX, missing, difference or ranks"
proof = ["FILL IN: the stack you saw it on, as tf457-ds0182"]
en = "FILL IN: what is trained, in a line, for the compatibility page"
"""
FAILURE = """\
id = "{failure}"
order = {order}

title = "FILL IN: what it is, in a line"
see = "FILL IN: what is printed, `quoted`, or: nothing"
where = "FILL IN: engine, tuning, versions: since and until"

cause = "FILL IN: why, in one or two sentences"

advice = ["FILL IN: a line that helps without vlmpatch, the best first"]

symptoms = [{{ all = ["FILL IN: text of the log that no other failure prints"] }}]
"""
