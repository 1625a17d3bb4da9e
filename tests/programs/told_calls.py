"""Packs calls of every kind that can be told to another rank, and holds what is unpacked against them.

    python -m tests.programs.told_calls

Prints a JSON line: the calls made, and the first that came out otherwise.
"""

from __future__ import annotations

import importlib
import json
import math
import random
from typing import Any

import torch

import vlmpatch  # noqa: F401  (makes vlmpatch.patches importable in a checkout)

told_calls = importlib.import_module("vlmpatch.patches._shared.told_calls")
CALLS = 3_000
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
WHOLE = (torch.int64, torch.int32, torch.uint8, torch.bool)
SHAPES = ((), (0,), (3,), (2, 3), (1, 0, 2))
PLAIN = (
    None,
    True,
    False,
    0,
    -7,
    2**63,
    0.5,
    -math.inf,
    "",
    "sdpa",
    "图像 \ud800\n",
    torch.device("cpu"),
    *FLOATS,
)


def value(chosen: random.Random, depth: int = 0) -> Any:
    """Something that an argument may be."""
    kind = chosen.choice(("plain", "floats", "whole", "list", "tuple", "dict"))
    if kind == "plain" or (depth > 2 and kind in ("list", "tuple", "dict")):
        return chosen.choice(PLAIN)
    shape = chosen.choice(SHAPES)
    if kind == "floats":
        made = torch.randn(shape).to(chosen.choice(FLOATS))
        return made.requires_grad_(chosen.random() < 0.5)
    if kind == "whole":
        made = torch.randint(0, 2, shape).to(chosen.choice(WHOLE))
        return made.t() if made.dim() == 2 else made  # not contiguous
    items = [value(chosen, depth + 1) for _ in range(chosen.randrange(4))]
    if kind == "dict":
        return {f"name {number}": item for number, item in enumerate(items)}
    return items if kind == "list" else tuple(items)


def is_same(given: Any, made: Any) -> bool:
    """All of it, but for the numbers in floating-point tensors."""
    if type(given) is not type(made):
        return False
    if isinstance(given, torch.Tensor):
        alike = (given.shape, given.dtype, given.requires_grad) == (
            made.shape,
            made.dtype,
            made.requires_grad,
        )
        return alike and (given.is_floating_point() or torch.equal(given, made))
    if isinstance(given, (list, tuple)):
        return len(given) == len(made) and all(map(is_same, given, made))
    if isinstance(given, dict):
        return [*given] == [*made] and all(is_same(given[name], made[name]) for name in given)
    return bool(given == made)


def refused() -> list[str]:
    """The types that cannot be told, each named."""
    named = []
    for call in (object(), [{1}], {"model": torch.nn.Linear(1, 1)}):
        try:
            told_calls.packed(call)
        except TypeError as error:
            named.append(str(error))
    return named


def main() -> None:
    chosen = random.Random(0)
    different = None
    for _ in range(CALLS):
        given = (tuple(value(chosen) for _ in range(2)), {"grid": value(chosen)})
        made = told_calls.unpacked(told_calls.packed(given), torch.device("cpu"))
        if not is_same(given, made):
            different = different or repr((given, made))
    print(json.dumps({"calls": CALLS, "different": different, "refused": refused()}))


if __name__ == "__main__":
    main()
