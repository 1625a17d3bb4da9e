"""Holds what stands in for ``transformers.modeling_attn_mask_utils`` against the module itself.

    python -m tests.programs.masks

Every function is called with every small shape, dtype, window and kind of mask, and both have to give the
same bits, or the same kind of error. Prints a JSON line: the calls made, those that ended in an error, and
the first that did not end alike.
"""

from __future__ import annotations

import importlib
import itertools
import json
import random
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import transformers.modeling_attn_mask_utils as theirs

import vlmpatch  # noqa: F401  (makes vlmpatch.patches importable in a checkout)

ours = importlib.import_module("vlmpatch.patches._shared.attention_masks")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)  # float64 is too low for the module
SHAPES = ((1, 3), (1, 4), (0, 1, 3), (None, 1, 3, 6, 0), DTYPES)  # rows, queries, past, window, dtype
CAUSAL = ("_prepare_4d_causal_attention_mask", "_prepare_4d_causal_attention_mask_for_sdpa")
PADDING = ("_prepare_4d_attention_mask", "_prepare_4d_attention_mask_for_sdpa", "_expand_mask")


class Call(NamedTuple):
    name: str
    arguments: tuple[Any, ...]
    converter: tuple[Any, ...] | None = None  # its arguments, where it is a method of one

    def of(self, module: Any) -> Any:
        """What it returns, or the class of what it raises."""
        owner = module if hasattr(module, self.name) else module.AttentionMaskConverter
        try:
            owner = owner if self.converter is None else owner(*self.converter)
            return getattr(owner, self.name)(*self.arguments)
        except Exception as error:
            return type(error)


def masks(rows: int, keys: int, chance: random.Random) -> Iterator[torch.Tensor]:
    """What may be said of keys: all, none, padding on either side, holes, and what is no mask at all."""
    lengths = torch.tensor([chance.randint(0, keys) for _ in range(rows)])[:, None]
    places = torch.arange(keys)[None]
    numbers = torch.tensor([[chance.random() for _ in range(keys)] for _ in range(rows)])
    yield torch.ones(rows, keys, dtype=torch.long)
    yield torch.zeros(rows, keys, dtype=torch.bool)
    yield (places < lengths).long()
    yield places >= keys - lengths
    yield (numbers < 0.5).float()
    yield numbers.half()
    yield torch.where(numbers < 0.3, torch.nan, (numbers * 4).round())


def calls() -> Iterator[Call]:
    chance = random.Random(0)
    for rows, queries, past, window, dtype in itertools.product(*SHAPES):
        keys, embeds = queries + past, torch.zeros(rows, queries, 2, dtype=dtype)
        shape, size = torch.Size((rows, queries)), (past, window)
        made = [*masks(rows, keys, chance)]
        yield Call("_create_4d_causal_attention_mask", (shape, dtype, "cpu", *size))
        yield Call("_make_causal_mask", (shape, dtype, embeds.device, *size))
        for mask, name in itertools.product([None, *made], CAUSAL):
            yield Call(name, (mask, [*shape], embeds, *size))
            yield Call("_ignore_causal_mask_sdpa", (mask, embeds, *size, name is CAUSAL[0]))
        for causal, mask in itertools.product((True, False), made):
            yield Call("to_causal_4d", (rows, queries, keys, dtype), (causal, window))
            yield Call("to_4d", (mask, queries, dtype, keys), (causal, window))
            yield Call("to_4d", (mask, queries, dtype), (causal, window))
        for mask in made:
            yield from (Call(name, (mask, dtype, n)) for name in PADDING for n in (None, queries))
            whole = mask[:, None, None].expand(rows, 1, queries, keys)
            for name, four in itertools.product(CAUSAL, (whole, whole[..., :1], whole.to(dtype))):
                yield Call(name, (four, shape, embeds, *size))
            lowest = torch.finfo(dtype).min if dtype.is_floating_point else 0
            scores = torch.zeros(whole.shape, dtype=dtype).masked_fill(whole == 0, lowest)
            yield from (Call("_unmask_unattended", (given, lowest)) for given in (scores, whole))


def alike(one: Any, other: Any) -> bool:
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return type(one) is type(other) and bool(one == other)
    if (one.dtype, one.shape, one.device) != (other.dtype, other.shape, other.device):
        return False
    bits = [each.contiguous().view(-1).view(torch.uint8) for each in (one, other)]
    return bool((bits[0] == bits[1]).all())


def main() -> None:
    warnings.simplefilter("ignore")  # the module says that it will be removed
    made = errors = 0
    different = []
    for call in calls():
        right, found = call.of(theirs), call.of(ours)
        made, errors = made + 1, errors + isinstance(right, type)
        if not alike(right, found):
            different.append(f"{call}: {right}, not {found}")
    print(json.dumps({"calls": made, "errors": errors, "different": different[:5]}))


if __name__ == "__main__":
    main()
