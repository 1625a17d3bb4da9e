"""DeepSpeed's sequence parallelism (Ulysses): how far each stage's gradient is off one process's (F56).

    python -m tests.lab.sequence tf457-ds0182

Two ranks hold half of a row each, ``sp = 2``; with ``--rows 2`` another two hold another row. The loss of a
row is put together in the two ways that are in use, and in two that make up for what the first has too much;
each stage of ZeRO then divides what the ranks' gradients sum up to. Printed is the gradient's length over
that of one process that sees whole rows: 1 is right. With ``--inside`` it runs in the stack itself.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab import envs, launch
from vlmpatch_lab import forks

SIZE = 2  # of the sequence parallel group
LENGTH = 16  # tokens of the row; half of it is a rank's
IGNORED = -100
STAGES: dict[str, dict[str, Any]] = {
    "ZeRO-0": {"stage": 0},
    "ZeRO-1": {"stage": 1},
    "ZeRO-2": {"stage": 2},
    "ZeRO-3": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "ZeRO-3, all-reduce": {"stage": 3, "stage3_param_persistence_threshold": 0, "reduce_scatter": False},
}
LIMIT = 120.0
Ratios = dict[str, dict[str, float]]  # by loss, by stage


def perform(stack_name: str, *, patched: bool = False, rows: int = 1) -> Ratios:
    """What every stage makes of every loss, in the stack."""
    stack = envs.read_stacks()[stack_name]
    folder = launch.checkpoint(stack, "llama")
    with tempfile.TemporaryDirectory(prefix="sequence-") as out:
        command: list[str | Path] = ["python", "-W", "ignore", "-m", "tests.lab.sequence", stack_name]
        command += ["--inside", folder, out, "--rows", str(rows), *(["--patched"] if patched else [])]
        finished = launch.run(stack, command, limit=LIMIT * (1 + len(LOSSES) * len(STAGES)))
        if finished.rc != 0:
            raise RuntimeError(str(finished))
        found: Ratios = json.loads((Path(out) / "ratios").read_text())
    return found


# --- how a row's loss is put together ---------------------------------------------------------------


def gathered(loss: Any, counted: Any, group: Any) -> Any:
    """Of every rank its mean, by its tokens: what ALST, accelerate and HF Trainer do."""
    import torch.distributed.nn.functional as functional

    losses = functional.all_gather(loss, group=group)
    counts = functional.all_gather(counted, group=group)
    total = sum(each * count for each, count in zip(losses, counts, strict=True))
    return total / sum(counts)


def shared(loss: Any, counted: Any, group: Any) -> Any:
    """A rank's own share of the mean: what Megatron-DeepSpeed's gradients are."""
    import torch.distributed as dist

    total = counted.clone()
    dist.all_reduce(total, group=group)
    return loss * counted / total


def made_up_for(loss: Any, counted: Any, group: Any) -> Any:
    """The mean, divided by the size of the group: right where an engine divides by ``world / sp``."""
    return gathered(loss, counted, group) / SIZE


def divided_before(loss: Any, counted: Any, group: Any) -> Any:
    """The same, by a script that divides what it gathers."""
    return gathered(loss / SIZE, counted, group)


LOSSES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "gathered": gathered,
    "share": shared,
    "made up for": made_up_for,
    "divided before": divided_before,
}


# --- in the stack -----------------------------------------------------------------------------------


def row(number: int = 0) -> tuple[Any, Any]:
    """Tokens of shape [1, LENGTH] and what each is to say, already moved by one; the halves count unlike."""
    import torch

    ids = torch.randint(5, 100, (1, LENGTH), generator=torch.Generator().manual_seed(number))
    labels = torch.cat([ids[:, 1:], torch.full((1, 1), IGNORED)], 1)
    labels[:, :3] = IGNORED
    return ids, labels


def mean_loss(model: Any, ids: Any, labels: Any, places: Any) -> Any:
    import torch

    logits = model(input_ids=ids, position_ids=places, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[0].float(), labels[0], ignore_index=IGNORED)


def one_process(folder: Path, rows: int) -> dict[str, Any]:
    """The gradients of the mean over whole rows."""
    import torch

    torch.set_num_threads(1)
    model = _loaded(folder)
    for ids, labels in map(row, range(rows)):
        (mean_loss(model, ids, labels, torch.arange(LENGTH)[None]) / rows).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _loaded(folder: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").train()


def _right(folder: Path, out: Path, rows: int, rank: int, port: int) -> None:
    import torch

    torch.save(one_process(folder, rows), out / "right")


def _rank(folder: Path, out: Path, rows: int, stage: str, loss: str, rank: int, port: int) -> None:
    import deepspeed
    import torch
    import torch.distributed as dist
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    from vlmpatch_lab.collectives import wait_for_every_collective
    from vlmpatch_lab.engines import answer_for_cpu

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(SIZE * rows)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    sys.stdout = sys.stderr = (out / f"log{rank}").open("w")
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    wait_for_every_collective()
    answer_for_cpu()
    _scatter_in_groups()
    model = _loaded(folder)
    mpu = UlyssesSPAttentionHF.register_with_transformers(model, "sdpa", SIZE, micro_batch_size=1)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "SGD", "params": {"lr": 0.0}},
        "zero_optimization": STAGES[stage],
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.0,
        "sequence_parallel_size": SIZE,
    }
    trained = [*model.parameters()]
    engine = deepspeed.initialize(model=model, model_parameters=trained, config=config, mpu=mpu)[0]
    number, place = divmod(rank, SIZE)
    own = slice(place * LENGTH // SIZE, (place + 1) * LENGTH // SIZE)
    ids, labels = (part[:, own] for part in row(number))
    mean = mean_loss(engine, ids, labels, torch.arange(LENGTH)[None, own])
    counted = (labels != IGNORED).sum().float()
    engine.backward(LOSSES[loss](mean, counted, mpu.get_sequence_parallel_group()))
    found = {name: deepspeed.utils.safe_get_full_grad(p) for name, p in model.named_parameters()}
    if rank == 0:
        right = torch.load(out / "right")
        lengths = [float(found[name].norm() / part.norm()) for name, part in right.items()]
        off = max(float((found[n] / lengths[0] - part).norm() / part.norm()) for n, part in right.items())
        (out / "ratio").write_text(json.dumps([lengths[0], off]))
    dist.barrier()
    dist.destroy_process_group()


def _scatter_in_groups() -> None:
    """The backward of torch's gather, over gloo, tells the ranks of a group by their places in it."""
    import torch.distributed as dist

    scatter = dist.scatter

    def of_group(tensor: Any, parts: Any, src: int, group: Any) -> Any:
        return scatter(tensor, parts, dist.get_global_rank(group, src), group=group)

    dist.scatter = of_group


def inside(folder: Path, out: Path, rows: int) -> Ratios:
    """Every stage under every loss, each in ranks of its own."""
    import transformers  # noqa: F401

    from vlmpatch_lab.engines import preload_engine
    from vlmpatch_lab.ports import free_port

    preload_engine()
    forks.run(_right, folder, out, rows, world=1, port=0, limit=LIMIT)
    ratios: Ratios = {}
    for loss in LOSSES:
        for stage in STAGES:
            told = (folder, out, rows, stage, loss)
            codes = forks.run(_rank, *told, world=SIZE * rows, port=free_port(), limit=LIMIT)
            if any(codes):
                raise RuntimeError("".join(log.read_text() for log in sorted(out.glob("log*"))))
            ratio, off = json.loads((out / "ratio").read_text())
            if off > 1e-4:
                raise RuntimeError(f"{loss}, {stage}: not one factor for all parameters, {off}")
            ratios.setdefault(loss, {})[stage] = round(ratio, 4)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.sequence")
    parser.add_argument("stack", choices=envs.read_stacks())
    parser.add_argument("--patched", action="store_true")
    parser.add_argument("--rows", type=int, default=1, help="each on two ranks; default: 1")
    parser.add_argument("--inside", type=Path, nargs=2, metavar=("CHECKPOINT", "OUT"))
    asked = parser.parse_args()
    if asked.inside is None:
        print(json.dumps(perform(asked.stack, patched=asked.patched, rows=asked.rows), indent=1))
        return
    if asked.patched:
        import vlmpatch  # noqa: F401
    folder, out = asked.inside
    (out / "ratios").write_text(json.dumps(inside(folder, out, asked.rows)))


if __name__ == "__main__":
    main()
