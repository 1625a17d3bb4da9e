"""Trainings with a tower that no rank uses in some steps, saved on their way and resumed by other processes.

    torchrun --nproc_per_node 2 -m tests.programs.resumed_steps save CHECKPOINTS ENDS [--patched]
    torchrun --nproc_per_node 2 -m tests.programs.resumed_steps resume CHECKPOINTS ENDS [--patched]
    python -m tests.programs.resumed_steps strip CHECKPOINTS COPY
    python -m tests.programs.resumed_steps apart ENDS OTHERS

``save`` trains to the end under each engine and leaves a checkpoint on its way, made universal as well;
``resume`` goes on from there by each way. Every rank writes the weights that it ends with to
``ENDS/<engine>-<way>-<rank>.pt``. ``strip`` copies checkpoints without what vlmpatch has added to them;
``apart`` prints in JSON how far the weights in ``ENDS`` are, at most, from those of the same name in
``OTHERS`` or, if that is one of them (``ddp-whole``), from those.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest import mock

if "--patched" in sys.argv:
    import vlmpatch  # noqa: F401

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from torch.nn.parallel import DistributedDataParallel

STEPS, AT = 7, 4  # of the whole training, and before the checkpoint
WITH_IMAGES = (False, True, False, False, True, False, True)  # of each step
ENGINES = ("ddp", "zero1", "zero2", "zero3", "zero3_offload")
WAYS: dict[str, dict[str, Any]] = {
    "resumed": {},
    "module-only": {"load_module_only": True},
    "without-states": {"load_optimizer_states": False},
    "universal": {},
}
# An eps that keeps what is rounding in a gradient from becoming a step.
ADAMW = {"lr": 0.02, "eps": 0.1, "weight_decay": 0.1}


class Net(torch.nn.Module):  # type: ignore[misc]  # torch is not where mypy runs
    """A tower whose images are passed by where there is none, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tower, self.text = torch.nn.Linear(5, 7), torch.nn.Linear(5, 7)
        self.head, self.last = torch.nn.Linear(7, 7), torch.nn.Linear(7, 3)

    def forward(self, x: torch.Tensor, images: bool) -> torch.Tensor:
        hidden = self.text(x).tanh()
        if images:
            hidden = hidden + self.tower(x).tanh()
        out: torch.Tensor = self.last(self.head(hidden).tanh()).pow(2).mean()
        return out


class Ddp:
    """torch's own, and AdamW: what is right."""

    def __init__(self) -> None:
        self.net = Net()
        self.model = DistributedDataParallel(self.net, find_unused_parameters=True)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), **ADAMW)

    def step(self, x: torch.Tensor, images: bool) -> None:
        self.model(x, images).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, folder: Path) -> None:
        if dist.get_rank() == 0:
            folder.mkdir(parents=True)
            torch.save([self.net.state_dict(), self.optimizer.state_dict()], folder / "state.pt")
        dist.barrier()

    def load(self, folder: Path, **_: Any) -> None:
        net, optimizer = torch.load(folder / "state.pt")
        self.net.load_state_dict(net)
        self.optimizer.load_state_dict(optimizer)

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.net.named_parameters()}


class Zero:
    """DeepSpeed's engine, its own save and its own load."""

    def __init__(self, engine: str, **config: Any) -> None:
        stage, _, offloaded = engine.removeprefix("zero").partition("_")
        zero: dict[str, Any] = {"stage": int(stage)}
        if stage == "3":
            zero["stage3_param_persistence_threshold"] = 0
        if offloaded:
            zero["offload_optimizer"] = {"device": "cpu"}
        net = Net()
        self.engine = deepspeed.initialize(
            model=net,
            optimizer=torch.optim.AdamW(net.parameters(), **ADAMW),
            config={
                "train_micro_batch_size_per_gpu": 2,
                "zero_optimization": zero,
                "gradient_clipping": 0.0,
                "zero_allow_untested_optimizer": True,
                "zero_force_ds_cpu_optimizer": False,
                "steps_per_print": 1_000_000,
                **config,
            },
        )[0]
        self.net = net

    def step(self, x: torch.Tensor, images: bool) -> None:
        self.engine.backward(self.engine(x, images))
        self.engine.step()

    def save(self, folder: Path) -> None:
        self.engine.save_checkpoint(str(folder))

    def load(self, folder: Path, **said: Any) -> None:
        assert self.engine.load_checkpoint(str(folder), **said)[0]

    def weights(self) -> dict[str, torch.Tensor]:
        full = deepspeed.utils.safe_get_full_fp32_param
        return {name: full(value).clone() for name, value in self.net.named_parameters()}


def make_universal(folder: Path) -> None:
    """Put the universal checkpoint beside the one in ``folder``, by DeepSpeed's tool on one rank."""
    if dist.get_rank() == 0:
        tool = importlib.import_module("deepspeed.checkpoint.ds_to_universal")
        saved = folder / (folder / "latest").read_text()
        words = [f"--input_folder={saved}", f"--output_folder={universal(folder) / saved.name}"]
        alone = ["--num_extract_workers=1", "--num_merge_workers=1", "--inject_missing_state"]
        with mock.patch.object(sys, "argv", ["ds_to_universal", *words, *alone]):
            tool.main(tool.parse_arguments())
    dist.barrier()


def universal(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-universal")


def made(engine: str, **config: Any) -> Any:
    return (Ddp if engine == "ddp" else Zero)(**({} if engine == "ddp" else {"engine": engine, **config}))


def train(trained: Any, steps: range) -> None:
    for step in steps:
        drawn = torch.Generator().manual_seed(10 * step + dist.get_rank())
        trained.step(torch.randn(2, 5, generator=drawn), WITH_IMAGES[step])


def save(engine: str, ways: list[str], checkpoints: Path, ends: Path) -> None:
    """A training to the end, and a checkpoint on its way."""
    folder = checkpoints / engine
    trained = made(engine)
    train(trained, range(AT))
    trained.save(folder)
    keep(trained.weights(), ends, f"{engine}-saved")
    if engine != "ddp":
        keep(get_fp32_state_dict_from_zero_checkpoint(str(folder)), ends, f"{engine}-fp32")
    if "universal" in ways and engine != "ddp":
        make_universal(folder)
    train(trained, range(AT, STEPS))
    keep(trained.weights(), ends, f"{engine}-whole")


def resume(engine: str, ways: list[str], checkpoints: Path, ends: Path) -> None:
    """From there on, by each way."""
    for way in ("resumed",) if engine == "ddp" else ways:
        converted = way == "universal"
        folder = universal(checkpoints / engine) if converted else checkpoints / engine
        trained = made(engine, **({"checkpoint": {"load_universal": True}} if converted else {}))
        trained.load(folder, **WAYS[way])
        train(trained, range(AT, STEPS))
        keep(trained.weights(), ends, f"{engine}-{way}")


def keep(weights: dict[str, torch.Tensor], ends: Path, name: str) -> None:
    ends.mkdir(parents=True, exist_ok=True)
    torch.save(dict(weights), ends / f"{name}-{dist.get_rank()}.pt")


def strip(checkpoints: Path, copy: Path) -> None:
    """Copy them without what vlmpatch has added, and print in how many files that was."""
    shutil.copytree(checkpoints, copy)
    found = 0
    for path in (*copy.rglob("*optim_states.pt"), *copy.rglob("optimizer_state.pt")):
        state = torch.load(path, weights_only=False)
        optimizer = state.get("optimizer_state_dict", state)
        added = [key for key in (*optimizer, *optimizer.get("optimizer_state_dict", ())) if "vlmpatch" in key]
        for key in added:
            del optimizer[key]
        torch.save(state, path)
        found += bool(added)
    print(json.dumps({"stripped": found}))


def apart(ends: Path, others: Path) -> None:
    """How far each ended from its measure, the worst rank's."""
    found: dict[str, float] = {}
    for path in sorted(ends.glob("*.pt")):
        name, _, rank = path.stem.rpartition("-")
        other = others / path.name if others.is_dir() else others.with_name(f"{others.name}-{rank}.pt")
        mine, theirs = torch.load(path), torch.load(other)
        worst = max(float((mine[key] - theirs[key]).abs().max()) for key in theirs)
        found[name] = max(worst, found.get(name, 0.0))
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.programs.resumed_steps")
    parser.add_argument("deed", choices=["save", "resume", "strip", "apart"])
    parser.add_argument("places", nargs=2, type=Path)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--patched", action="store_true")
    asked = parser.parse_args()
    if asked.deed in ("strip", "apart"):
        {"strip": strip, "apart": apart}[asked.deed](*asked.places)
        return
    deepspeed.init_distributed(dist_backend="gloo")
    for engine in asked.engines.split(","):
        {"save": save, "resume": resume}[asked.deed](engine, asked.ways.split(","), *asked.places)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
