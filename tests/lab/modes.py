"""A model class of transformers in four modes: evaluation, and training without checkpointing and with both.

    python -m tests.lab.modes --out LINES [--only Llama,Gemma3n] [--known NAMES] [--patched]

runs inside a stack, imports every model of transformers once and forks a process for each class that neither
LINES nor NAMES has. What is right is the function of evaluation mode: with dropout at zero and batch norms as
they evaluate, training computes the same one, whatever recomputes it. A class whose training draws numbers
(two seeds, two results) is held against its own training without checkpointing and the same seed. What is off
in float32 and the same in float64 is the same function, rounded.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import inspect
import json
import math
import pkgutil
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.lab.made_small.feeds import Inputs
from tests.lab.made_small.put_out import size, value
from tests.lab.made_small.trying import fed, whole
from tests.lab.made_small.unmade import PART
from vlmpatch_lab import forks

MODES = ("off", "nonreentrant", "reentrant")
CHANCE = "by chance"
OFF = " off"
TOLERANCE = 1e-4  # relative, float32
Tell = Callable[[dict[str, str]], None]  # hears what is known so far
LIMIT = 120.0  # seconds a class may take
PROCESSOR = 40  # of them on a processor, whatever else the machine does
SLOWER = 30  # times as long as without checkpointing: each block goes back through all before it
LEAST = 5.0  # seconds on a processor that a mode has anyhow
SLOW = f"`{SLOWER} times as long as without checkpointing are not enough`"


def classes(only: list[str]) -> list[Any]:
    """The model classes that say they support checkpointing and whose names begin as one of ``only``."""
    from transformers import PreTrainedModel, models

    found: dict[str, Any] = {}
    for name in _modules(models):
        with contextlib.suppress(Exception):  # it wants a package that is not there
            for value in vars(importlib.import_module(name)).values():
                if inspect.isclass(value) and issubclass(value, PreTrainedModel) and value.__module__ == name:
                    found[value.__name__] = value
    return [
        kind
        for name, kind in sorted(found.items(), key=lambda item: (_is_head(item[0]), item[0]))
        if not name.endswith("PreTrainedModel")
        and kind.supports_gradient_checkpointing
        and kind.config_class is not None
        and (not only or name.startswith(tuple(only)))
    ]


def _is_head(name: str) -> bool:
    """Whether a class only puts another head on what other classes are: those come last."""
    return "For" in name and not name.endswith(("ForCausalLM", "ForConditionalGeneration"))


def _modules(models: Any) -> Iterator[str]:
    for family in pkgutil.iter_modules(models.__path__, f"{models.__name__}."):
        with contextlib.suppress(Exception):
            folder = importlib.import_module(family.name)
            for module in pkgutil.iter_modules(folder.__path__, f"{family.name}."):
                name = module.name.rpartition(".")[2]
                if name.startswith("modeling_") and not name.startswith(("modeling_tf_", "modeling_flax_")):
                    yield module.name


# --- the modes -------------------------------------------------------------------------------------


def gradients(model: Any, inputs: Inputs, mode: str, seed: int = 0) -> dict[str, Any]:
    """The value and the gradients of one forward and backward in ``mode``."""
    import torch

    model.zero_grad(set_to_none=True)
    model.train(mode != "evaluation")
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.eval()
    if mode in ("nonreentrant", "reentrant"):
        model.gradient_checkpointing_enable({"use_reentrant": mode == "reentrant"})
    torch.manual_seed(seed)
    outputs = model(**inputs)
    result, scale = value(outputs), size(outputs)
    result.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    if mode in ("nonreentrant", "reentrant"):
        model.gradient_checkpointing_disable()
    return {"": torch.tensor([float(result), scale]), **found}


def verdict(got: dict[str, Any], right: dict[str, Any]) -> str:
    """``=``, or how far ``got`` is from ``right``."""
    largest = max(float(tensor.norm()) for tensor in right.values())
    if not largest < float("inf"):
        return "not finite in evaluation mode"
    seen = {name: tensor for name, tensor in right.items() if float(tensor.norm()) > 1e-6 * largest}
    if missing := [name for name in seen if name not in got]:
        return f"{len(missing)} without a gradient"
    off = max(float((got[name] - right[name]).norm() / tensor.norm()) for name, tensor in seen.items())
    return "=" if off <= TOLERANCE else f"{off:.0e}{OFF}"


def judged(kind: Any, tell: Tell = lambda _: None) -> dict[str, str]:
    """Of each mode: ``=``, how far it is off, or the error it ends in; or why nothing was run."""
    try:
        model, inputs = fed(kind)
        right = gradients(model, inputs, "evaluation")
        if verdict(gradients(model, inputs, "evaluation"), right) != "=":
            return {"not made": "evaluation mode is no function: two runs differ"}
    except Exception as error:
        owner = whole(kind)
        return {"not made": f"{PART}{owner.__name__}" if owner else _said(error)}
    found = _in_all(model, inputs, right, tell)
    tell(found)
    rounded = [mode for mode, said in found.items() if said.endswith(OFF)]
    with contextlib.suppress(Exception):  # some know float32 alone
        exact = _exactly(model, inputs) if rounded else {}
        found |= {mode: "=" for mode in rounded if exact[mode] == "="}
    return found


def _in_all(model: Any, inputs: Inputs, right: dict[str, Any], tell: Tell = lambda _: None) -> dict[str, str]:
    began = time.process_time()
    found = {"off": _judged(model, inputs, "off", right)}
    limit = max(LEAST, SLOWER * (time.process_time() - began))
    if found["off"] != "=" and _draws(model, inputs):
        found["off"], right = CHANCE, gradients(model, inputs, "off")
    for mode in MODES[1:]:
        if limit < PROCESSOR:
            tell(found | {mode: SLOW})  # which stays where it ends the process
        with _within(limit):
            found[mode] = _judged(model, inputs, mode, right)
    return found


def _exactly(model: Any, inputs: Inputs) -> dict[str, str]:
    """Of each mode, what becomes of it in float64."""
    model = copy.deepcopy(model).double()
    inputs = {name: _double(each) for name, each in inputs.items()}
    return _in_all(model, inputs, gradients(model, inputs, "evaluation"))


def _double(each: Any) -> Any:
    import torch

    if not isinstance(each, torch.Tensor) or not each.is_floating_point():
        return each
    return each.detach().double().requires_grad_(each.requires_grad)


def _judged(model: Any, inputs: Inputs, mode: str, right: dict[str, Any]) -> str:
    try:
        return verdict(gradients(model, inputs, mode), right)
    except Exception as error:
        return f"`{_said(error)}`"


@contextlib.contextmanager
def _within(limit: float) -> Iterator[None]:
    """An end to the process where this takes longer than ``limit`` seconds on a processor."""
    now, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + limit), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (now, most))


def _draws(model: Any, inputs: Inputs) -> bool:
    """Whether training without checkpointing is another one with another seed, and the same with the same."""
    try:
        once, again, other = (gradients(model, inputs, "off", seed) for seed in (0, 0, 1))
    except Exception:
        return False
    return verdict(again, once) == "=" != verdict(other, once)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:110]


def _judge(kind: Any, out: Path, rank: int, port: int) -> None:
    import torch

    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = out.with_suffix(".log").open("w")
    out.write_text(json.dumps(judged(kind, lambda found: _told(out, found))))


def _told(out: Path, found: dict[str, str]) -> None:
    out.write_text(json.dumps(found))


def lines_of(path: Path) -> list[dict[str, str]]:
    """What is in ``path`` so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.modes")
    parser.add_argument("--out", type=Path, required=True, help="a line of JSON for each class goes here")
    parser.add_argument("--only", default="", help="beginnings of class names, by commas")
    parser.add_argument("--known", type=Path, help="a file of class names to pass over, one a line")
    parser.add_argument("--patched", action="store_true")
    asked = parser.parse_args()
    if asked.patched:
        importlib.import_module("vlmpatch")
    run: Callable[..., list[int | None]] = forks.run
    done = {line["class"] for line in lines_of(asked.out)}
    done |= {*asked.known.read_text().split()} if asked.known else set()
    with asked.out.open("a") as lines:
        for kind in classes([name for name in asked.only.split(",") if name]):
            if kind.__name__ in done:
                continue
            one = asked.out.with_name(f"{kind.__name__}.json")
            one.unlink(missing_ok=True)
            (code,) = run(_judge, kind, one, world=1, port=0, limit=LIMIT)
            found = json.loads(one.read_text()) if one.exists() else {"not made": f"ended with {code}"}
            found["module"] = kind.__module__.split(".")[2]
            print(json.dumps({"class": kind.__name__, **found}), file=lines, flush=True)


if __name__ == "__main__":
    main()
