"""What was measured of a family of models, nearest stack first: ``data/families.csv``, ``mixed.csv``."""

from __future__ import annotations

import csv
import functools
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from vlmpatch.catalog.location import default_path
from vlmpatch.gate.versions import pep440

RIGHT = "="  # how the records write that gradients and steps are right
ENGINES = ("ddp_unused", "zero1", "zero2", "zero3", "fsdp1", "fsdp2")
_STACK = re.compile(r"tf(\d)(\d+)-ds(\d)(\d\d)(\d+)")
Version = tuple[int, ...]


class Trained(NamedTuple):
    """A small model of the family, LoRA under ZeRO-3 with an image in every batch: how each run ended.

    Attributes:
        on: the stack, in words.
        bare: without vlmpatch, checkpointing on; nothing where it was not run.
        patched: with it.
    """

    on: str
    bare: str
    patched: str


class Mixed(NamedTuple):
    """Batches with and without images, with vlmpatch.

    Attributes:
        on: the stack, in words.
        right: by engine the tunings whose gradients and steps were right.
        otherwise: by engine those that ended in another way.
    """

    on: str
    right: Mapping[str, tuple[str, ...]]
    otherwise: Mapping[str, tuple[str, ...]]


def trained(kind: str, transformers: str | None) -> Trained | None:
    """What was measured of models of ``kind``, on the stack nearest to the version installed."""
    rows = [row for row in _rows("families.csv") if row["family"] == kind and not row["not made"]]
    stack = _nearest({row["stack"] for row in rows}, transformers)
    row = next((row for row in rows if row["stack"] == stack), None)
    return Trained(_words(stack), row["bare default"], row["patched default"]) if row else None


def mixed(kind: str, transformers: str | None) -> Mixed | None:
    """The same for batches with and without images, in turn on each rank."""
    rows = [row for row in _rows("mixed.csv") if row["kind"] == kind and row["pattern"] == "alternating"]
    stack = _nearest({row["stack"] for row in rows}, transformers)
    rows = [row for row in rows if row["stack"] == stack]
    if not rows:
        return None
    ran = {engine: [(row["tuning"], row[engine]) for row in rows if row[engine]] for engine in ENGINES}
    right = {engine: tuple(what for what, word in words if word == RIGHT) for engine, words in ran.items()}
    other = {engine: tuple(what for what, word in words if word != RIGHT) for engine, words in ran.items()}
    return Mixed(_words(stack), right, other)


@functools.cache
def _rows(name: str) -> tuple[dict[str, str], ...]:
    """The lines of a record; none where it is not there or broken."""
    try:
        path = os.path.join(os.path.dirname(default_path()), "data", name)
        with open(path, encoding="utf-8", newline="") as handle:
            return tuple(csv.DictReader(handle, restval=""))
    except (OSError, ValueError, csv.Error):
        return ()


def _nearest(stacks: set[str], installed: str | None) -> str:
    """The stack whose transformers is nearest to the one ``installed``; the newest where none is."""
    known = {stack: (int(match[1]), int(match[2])) for stack in stacks if (match := _STACK.fullmatch(stack))}
    if not known:
        return ""
    try:
        _, parsed = pep440()
        wanted = tuple(parsed(installed or "").release[:2])
    except ValueError:
        return max(known, key=lambda stack: known[stack])
    return min(known, key=lambda stack: _distance(known[stack], wanted))


def _distance(one: Version, other: Version) -> Version:
    return tuple(abs(a - b) for a, b in zip(one, other, strict=False))


def _words(stack: str) -> str:
    match = _STACK.fullmatch(stack)
    if match is None:
        return stack
    return f"transformers {match[1]}.{match[2]}, DeepSpeed {match[3]}.{match[4]}.{match[5]}"
