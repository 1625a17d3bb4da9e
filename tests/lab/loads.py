"""Does ``from_pretrained`` under ZeRO-3 load what it loads without?

    python -m tests.lab.loads --out LINES [--only Llama,Gemma3n] [--patched]

runs inside a stack, imports every model of transformers once and forks a process for each class that
generates and that LINES has not. A small model of it, of which every number was drawn, is saved, and loaded
once plainly and once under ZeRO-3 by one rank. What is right is what the plain one has.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.lab import modes
from tests.lab.made_small.configurations import owned
from tests.lab.made_small.making import models
from vlmpatch_lab import collectives, engines, forks
from vlmpatch_lab.ports import free_port

HEADS = ("ForConditionalGeneration", "ForCausalLM", "LMHeadModel")
OTHERWISE = "what is loaded without ZeRO-3 is not what was saved"
LIMIT = 120.0  # seconds a class may take
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "train_batch_size": 1,
    "zero_optimization": {"stage": 3},
}


def verdict(kind: Any) -> dict[str, str]:
    """``=``, how much of the class is not what was saved, or the error it ends in; or why nothing was run."""
    with tempfile.TemporaryDirectory(prefix="loads-") as folder:
        try:
            saved = save_drawn(kind, folder)
            right = kind.from_pretrained(folder)
        except Exception as error:
            return {"not made": _said(error)}
        loaded = right.state_dict()
        if any(not _equal(loaded[name], tensor) for name, tensor in saved.state_dict().items()):
            return {"not made": OTHERWISE}
        begin()
        config = importlib.import_module("transformers.integrations").HfDeepSpeedConfig(CONFIG)
        try:
            found = kind.from_pretrained(folder)
        except Exception as error:
            return {"loads": f"`{_said(error)}`"}
        del config  # as long as it lives ZeRO-3 is on
    wrong = [*differing(found, right)]
    return {"loads": f"{len(wrong)} wrong, {wrong[0]} is one" if wrong else "="}


def save_drawn(kind: Any, folder: str) -> Any:
    """A checkpoint of the class with no number that a new model has, and its model."""
    import torch

    model = _small(kind)
    torch.manual_seed(0)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) / 2 + 0.25)
    model.save_pretrained(folder)
    return model


def _small(kind: Any) -> Any:
    errors: list[Exception] = []
    for own in owned(kind):
        for model in models(kind, own, errors):
            return model
    raise [*errors, ValueError("nothing is known of its configuration")][0]


def begin() -> None:
    """A world of one rank."""
    import deepspeed

    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ.update(alone, MASTER_PORT=str(free_port()))
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    collectives.wait_for_every_collective()
    engines.answer_for_cpu()


def differing(found: Any, right: Any) -> Iterator[str]:
    """The names of what ``found``, which is partitioned, has otherwise than ``right``."""
    import deepspeed
    import torch

    theirs = dict(found.named_parameters()) | dict(found.named_buffers())
    for name, tensor in (*right.named_parameters(), *right.named_buffers()):
        got = theirs.get(name)
        if got is None:
            yield name
            continue
        with deepspeed.zero.GatheredParameters([got] if isinstance(got, torch.nn.Parameter) else []):
            same = _equal(got, tensor)
        if not same:
            yield name


def _equal(one: Any, other: Any) -> bool:
    """But for roundings: what is computed, as rotary frequencies are, may be computed in another order."""
    import torch

    numbers = (each.detach().double() for each in (one, other))
    return one.shape == other.shape and bool(torch.allclose(*numbers, rtol=1e-5, atol=0, equal_nan=True))


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:110]


def _judge(kind: Any, out: Path, rank: int, port: int) -> None:
    import torch

    torch.set_num_threads(1)
    sys.stdout = sys.stderr = out.with_suffix(".log").open("w")
    out.write_text(json.dumps(verdict(kind)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.loads")
    parser.add_argument("--out", type=Path, required=True, help="a line of JSON for each class goes here")
    parser.add_argument("--only", default="", help="beginnings of class names, by commas")
    parser.add_argument("--patched", action="store_true")
    asked = parser.parse_args()
    if asked.patched:
        importlib.import_module("vlmpatch")
    run: Callable[..., list[int | None]] = forks.run
    done = {line["class"] for line in modes.lines_of(asked.out)}
    with asked.out.open("a") as lines:
        for kind in modes.classes([name for name in asked.only.split(",") if name]):
            if kind.__name__ in done or not kind.__name__.endswith(HEADS):
                continue
            one = asked.out.with_name(f"{kind.__name__}.json")
            one.unlink(missing_ok=True)
            (code,) = run(_judge, kind, one, world=1, port=0, limit=LIMIT)
            found = json.loads(one.read_text()) if one.exists() else {"loads": f"ended with {code}"}
            found["module"] = kind.__module__.split(".")[2]
            print(json.dumps({"class": kind.__name__, **found}), file=lines, flush=True)


if __name__ == "__main__":
    main()
