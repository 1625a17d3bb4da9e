"""The multimodal classes of a stack, one after another: a rank with an image or a sound, one with a text.

    python -m tests.lab.beside_text_ranks --out LINES [--only llava,gemma3] [--bare]

runs inside a stack. Each class is made small by ``tests.lab.made_small`` and trained for two steps under DDP
on two ranks; a parameter that an image does not train is frozen. What is right is the mean of the two
gradients, which each rank has measured before. Where nothing that is offered has an image, both ranks have a
text, and what is looked at is whether more of the model runs in a step than without the other rank: the blank
image.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import json
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.lab.made_small.feeds import Inputs, feeds
from tests.lab.made_small.put_out import value
from tests.lab.made_small.trying import fed, trains
from vlmpatch_lab import forks
from vlmpatch_lab.ports import free_port

LIMIT = 60.0  # seconds the ranks of a class may take
MAKING = 15.0  # seconds on a processor that go into the search for a small model
TOLERANCE = 1e-3  # of the largest number of a gradient
NOTHING = 1e-7  # a gradient below it is none
STEPS = 2
TEXT = 6  # tokens
NO_TEXT, NOT_MADE, TAKEN, SKIPPED = "takes no text alone", "not made", "blank image taken", "no more is run"
KINDS = ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES")
SHOWN = ("pixel", "input_features", "input_values", "audio")
NAMES = ("token_id", "token_index", "_id", "token_ids")  # of tokens that stand for something
Gradients = dict[str, Any]


def kinds(only: list[str]) -> Iterator[tuple[str, Any]]:
    """Families and their classes, as the automatic classes for images or for all kinds of input know them."""
    import transformers
    from transformers.models.auto import modeling_auto

    known = {**getattr(modeling_auto, KINDS[1], {}), **vars(modeling_auto)[KINDS[0]]}
    for family, name in known.items():
        if not only or family in only:
            yield family, getattr(transformers, name, None)


def inputs_of(kind: Any) -> tuple[Any, Inputs, bool]:
    """A small model, what it takes, and whether there is an image or a sound in it."""
    model, inputs = fed(kind, MAKING)
    model.train()
    if not _pictured(inputs):
        for other in filter(_pictured, feeds(model)):
            with contextlib.suppress(Exception):
                trains(model, other)
                return model, other, True
    return model, inputs, _pictured(inputs)


def _pictured(inputs: Inputs) -> bool:
    return any(word in name for name in inputs for word in SHOWN)


def text_for(model: Any, inputs: Inputs) -> Inputs:
    """A text of tokens that stand for themselves, and what else ``inputs`` say of each token."""
    import torch

    special = set(_special(model.config))
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = torch.tensor([[token for token in range(3, vocabulary) if token not in special][:TEXT]])
    text = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    types = {name: torch.zeros_like(ids) for name in inputs if name.endswith("token_type_ids")}
    return {**text, **types, **{name: ids.clone() for name in inputs if name.startswith("decoder_")}}


def _special(config: Any) -> Iterator[int]:
    for name, said in vars(config).items():
        if hasattr(said, "to_dict"):
            yield from _special(said)
        elif name.endswith(NAMES):
            yield from (each for each in (said if isinstance(said, (list, tuple)) else [said]) if each)


def gradients(model: Any, inputs: Inputs) -> Gradients:
    """What one sample gives each parameter."""
    import torch

    model.zero_grad(set_to_none=True)
    torch.manual_seed(0)
    value(model(**copy.deepcopy(inputs))).backward()
    found = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def judged(model: Any, inputs: Inputs, text: Inputs, rank: int) -> str:
    """What becomes of a training in which ``rank`` 0 has ``inputs`` and rank 1 has ``text``."""
    import torch

    try:
        of_text = gradients(model, text)
    except Exception as error:
        return f"{NO_TEXT}: {_said(error)}"
    of_image = gradients(model, inputs)
    right = {}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in of_image)
        if name in of_image:
            right[name] = (of_image[name] + of_text.get(name, 0)) / 2
    engine = torch.nn.parallel.DistributedDataParallel(model)
    worst = 0.0
    for _ in range(STEPS):
        torch.manual_seed(0)
        value(engine(**copy.deepcopy(inputs if rank == 0 else text))).backward()
        worst = max([worst, *(_off(each, right[n]) for n, each in model.named_parameters() if n in right)])
        model.zero_grad(set_to_none=True)
    return "=" if worst < TOLERANCE else f"off by {worst:.2g}"


def looked_at(model: Any, text: Inputs) -> str:
    """Whether a rank that has ``text``, as the other does, runs more of the model than by itself."""
    import torch

    try:
        with _called(model) as alone:
            gradients(model, text)
    except Exception as error:
        return f"{NO_TEXT}: {_said(error)}"
    engine = torch.nn.parallel.DistributedDataParallel(model)
    with _called(model) as together:
        value(engine(**copy.deepcopy(text))).backward()
    return TAKEN if together > alone else SKIPPED


@contextlib.contextmanager
def _called(model: Any) -> Iterator[set[str]]:
    """The names of the modules that run inside."""
    names: set[str] = set()
    hooks = [
        module.register_forward_hook(lambda *_, name=name: names.add(name))
        for name, module in model.named_modules()
    ]
    yield names
    for hook in hooks:
        hook.remove()


def _off(parameter: Any, right: Any) -> float:
    size = float(right.abs().max())
    got = right * 0 if parameter.grad is None else parameter.grad
    return float((got - right).abs().max()) / size if size > NOTHING else 0.0


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:110]


def rank_of(model: Any, inputs: Inputs | None, text: Inputs, out: Path, rank: int, port: int) -> None:
    """One of the two ranks; writes what it found beside ``out``."""
    import torch.distributed as dist

    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ.update(where)
    dist.init_process_group("gloo", timeout=timedelta(seconds=LIMIT / 2))
    try:
        found = judged(model, inputs, text, rank) if inputs else looked_at(model, text)
    except Exception as error:
        found = _said(error)
    out.with_suffix(f".{rank}").write_text(found)


def of_class(kind: Any, out: Path, rank: int, port: int) -> None:
    """Make ``kind`` small and run it; what its ranks found goes into ``out``."""
    import torch

    torch.set_num_threads(1)
    sys.stdout = sys.stderr = out.with_suffix(".log").open("w")
    try:
        model, inputs, pictured = inputs_of(kind)
        text = text_for(model, inputs)
    except Exception as error:
        out.write_text(json.dumps({"found": f"{NOT_MADE}: {_said(error)}"}))
        return
    fed_with = inputs if pictured else None
    forks.run(rank_of, model, fed_with, text, out, world=2, port=free_port(), limit=LIMIT)
    each = [out.with_suffix(f".{rank}") for rank in (0, 1)]
    words = [path.read_text() if path.exists() else "hung" for path in each]
    said = [line for line in out.with_suffix(".log").read_text().splitlines() if "does not accept" in line]
    found = next((word for word in words if word not in ("=", TAKEN)), words[0])
    out.write_text(json.dumps({"found": found, **({"refused": said[0]} if said else {})}))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.beside_text_ranks")
    parser.add_argument("--out", type=Path, required=True, help="a line of JSON for each family goes here")
    parser.add_argument("--only", default="", help="families, by commas")
    parser.add_argument("--bare", action="store_true")
    asked = parser.parse_args()
    if not asked.bare:
        importlib.import_module("vlmpatch")
    with asked.out.open("a") as lines:
        for family, kind in kinds([name for name in asked.only.split(",") if name]):
            one = asked.out.with_name(f"{family}.json")
            (code,) = forks.run(of_class, kind, one, world=1, port=0, limit=2 * LIMIT)
            found = json.loads(one.read_text()) if one.exists() else {"found": f"ended with {code}"}
            print(json.dumps({"family": family, **found}), file=lines, flush=True)


if __name__ == "__main__":
    main()
