"""What ``bench.states`` runs inside a stack: the bytes that a rank holds of a training."""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch.nn.parallel import DistributedDataParallel

from vlmpatch_lab import engines, forks, loading, models, ranks
from vlmpatch_lab.collectives import wait_for_every_collective
from vlmpatch_lab.ports import free_port

WORLD, LIMIT, WINDOW = 2, 300.0, 2
BUCKET = 1_000  # elements: what is reduced at a time, which is no state


def training(stage: int, model: Any) -> Any:
    """``model`` and its AdamW under ZeRO's ``stage``; 0 is DDP, whose weights are float32 under autocast."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if stage == 0:
        return DistributedDataParallel(model), torch.optim.AdamW(trained)
    zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": BUCKET, "overlap_comm": False}
    if stage == 3:  # all of it is parted, and nothing is kept beyond its use
        zero |= dict.fromkeys(("stage3_param_persistence_threshold", "stage3_max_reuse_distance"), 0)
        zero |= {"stage3_max_live_parameters": BUCKET, "stage3_prefetch_bucket_size": 0}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": WINDOW,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000,
    }
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    return deepspeed.initialize(model=model, model_parameters=trained, config=config)[:2]


def held(stage: int, tuning: str) -> dict[str, int]:
    """Parameters, trained ones, and the most bytes of tensors after a backward of the second window."""
    low = stage > 0 or tuning == "lora"
    model = models.qwen("qwen2_vl", "small", dtype="bfloat16" if low else "float32").train()
    count = sum(parameter.numel() for parameter in model.parameters())
    if tuning == "lora":
        model = loading.add_lora(model, vision=True)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    weights, others = set(storages_of(model.parameters())), set(storages())
    called, optimizer = training(stage, model)
    most = 0
    for number in range(2 * WINDOW):
        backward(called, stage)
        found = storages()
        if number >= WINDOW:
            most = max(most, sum(size for at, size in found.items() if at in weights or at not in others))
        if stage:
            called.step()
        elif number % WINDOW == WINDOW - 1:
            optimizer.step()
            optimizer.zero_grad()
    return {"parameters": count, "trained": trained, "bytes": most}


def backward(called: Any, stage: int) -> None:
    """A forward and backward of ``called``; afterwards every gradient is an object of Python's."""
    batch = models.batch("small", 12, seed=0)
    with torch.autocast("cpu", torch.bfloat16, enabled=stage == 0):
        loss = called(**batch).loss
    called.backward(loss) if stage else loss.backward()
    for parameter in called.parameters():
        _ = parameter.grad


def storages() -> dict[int, int]:
    """The memory that living tensors lie in: its size by where it begins."""
    gc.collect()
    return storages_of(each for each in gc.get_objects() if isinstance(each, torch.Tensor))


def storages_of(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    kept = [each.untyped_storage() for each in tensors if each.device.type == "cpu"]
    return {each.data_ptr(): each.nbytes() for each in kept if each.nbytes()}


def one_rank(stage: int, tuning: str, out: Path, rank: int, port: int) -> None:
    ranks.log_to(out.with_suffix(f".{rank}.log"))
    torch.set_num_threads(1)
    wait_for_every_collective()
    engines.answer_for_cpu()
    with ranks.process_group(rank, port, WORLD):
        found = held(stage, tuning)
        if rank == 0:
            out.write_text(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tunings", nargs="+")
    asked = parser.parse_args()
    engines.preload_engine()
    with tempfile.TemporaryDirectory() as folder:
        for tuning in asked.tunings:
            for stage in range(4):
                out = Path(folder) / f"{tuning}{stage}.json"
                forks.run(one_rank, stage, tuning, out, world=WORLD, port=free_port(), limit=LIMIT)
                if not out.exists():
                    print(out.with_suffix(".0.log").read_text())
                print(
                    json.dumps({"stage": stage, "tuning": tuning, **json.loads(out.read_text())}), flush=True
                )


if __name__ == "__main__":
    main()
