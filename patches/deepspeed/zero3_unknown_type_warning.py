"""``NameError: name 'warned' is not defined`` in ``apply_to_tensors_only``, in a forward under ZeRO-3.

What the user sees: that error on rank 0, in the first forward; the other ranks end with a lost connection,
or wait. A module that returns an object which is neither tensor, tuple, dict nor built-in brings it about: a
model whose output is a class of its own. What transformers' models return are dicts.

Why: such an object is to be warned of once, on rank 0. The function that does so says ``global warned``, and
moved to another module without the variable.

Since DeepSpeed 0.13.2, until 0.14.4; 0.14.5 has the variable where it is read.

The change: the module has the variable, ``False``. The warning is DeepSpeed's own, and is printed.

Upstream: https://github.com/deepspeedai/DeepSpeed/pull/5725
"""

from __future__ import annotations

import re
from types import ModuleType

from vlmpatch.api import Code, Patch, Unrecognised

NAME = "warned"


def look(code: Code) -> str | None:
    """The function must read a variable that its module does not have."""
    function = code.function("apply_to_tensors_only")
    if function is None or f"global {NAME}" not in function or f"not {NAME}" not in function:
        raise Unrecognised(f"{code.module} has no apply_to_tensors_only that asks whether it has {NAME}")
    return "the variable is there" if re.search(rf"^{NAME}\s*=", code.source, re.M) else None


def apply(patch: Patch, module: ModuleType) -> None:
    """Give the module the variable."""
    patch.replace(module, NAME, False)
