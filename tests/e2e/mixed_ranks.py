"""What two ranks do where cells do not reach: videos, evaluation, generation, slices.

    python -m tests.e2e.mixed_ranks --models KIND=FOLDER ... --out DIR [--patched] SCENARIO:KIND ...

runs inside a stack's environment. Each scenario forks two ranks; one JSON line a scenario. What is right is
computed in each rank before it meets the other.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

if "--patched" in sys.argv:
    import vlmpatch  # noqa: F401

import deepspeed
import torch

from vlmpatch_lab import collectives, engines, forks, loading, ranks, recording
from vlmpatch_lab.cell import WORLD, Cell
from vlmpatch_lab.ports import free_port
from vlmpatch_lab.samples import IGNORED, without_image

LIMIT = 90.0
IMAGE = 120
Batch = dict[str, Any]


def with_video(batch: Batch) -> Batch:
    """The batch with a video beside its image; both are four tokens of Qwen3-VL's smallest kind."""
    pieces = torch.full((1, 4), IMAGE + 1)
    longer = {**batch, "input_ids": torch.cat([batch["input_ids"], pieces, batch["input_ids"][:, :2]], dim=1)}
    length = longer["input_ids"].shape[1]
    labels = longer["input_ids"].masked_fill(longer["input_ids"] >= IMAGE, IGNORED)
    types = (longer["input_ids"] == IMAGE).long() + 2 * (longer["input_ids"] == IMAGE + 1).long()
    longer |= {"labels": labels, "attention_mask": torch.ones(1, length, dtype=torch.long)}
    if "mm_token_type_ids" in batch:
        longer["mm_token_type_ids"] = types
    torch.manual_seed(7)
    longer["pixel_values_videos"] = torch.randn_like(batch["pixel_values"])
    longer["video_grid_thw"] = batch["image_grid_thw"].clone()
    return longer


def video_only(batch: Batch) -> Batch:
    both = with_video(without_image(batch) | {k: batch[k] for k in ("pixel_values", "image_grid_thw")})
    return {name: value for name, value in both.items() if name not in ("pixel_values", "image_grid_thw")}


def image_and_text(folder: Path) -> list[Batch]:
    first, second = torch.load(folder / "batches.pt")[:2]
    return [first, without_image(second)]


def image_and_both(folder: Path) -> list[Batch]:
    first, second = torch.load(folder / "batches.pt")[:2]
    return [first, with_video(second)]


def video_and_text(folder: Path) -> list[Batch]:
    first, second = torch.load(folder / "batches.pt")[:2]
    return [video_only(first), without_image(second)]


def slices(folder: Path) -> list[Batch]:
    """MiniCPM-V: two slices on one rank, five on the other, two a call."""
    return [_sliced(folder, 2), _sliced(folder, 5)]


def _sliced(folder: Path, count: int) -> Batch:

    config = json.loads((folder / "config.json").read_text())
    patch, queries = config["vision_config"]["patch_size"], config["query_num"]
    torch.manual_seed(count)
    text = torch.randint(10, 100, (1, 4 + count * queries + 6))
    bounds = torch.tensor([[4 + queries * n, 4 + queries * (n + 1)] for n in range(count)])
    pixels = [torch.randn(3, patch, patch * 16) for _ in range(count)]
    data = {
        "input_ids": text,
        "position_ids": torch.arange(text.shape[1])[None],
        "pixel_values": [pixels],
        "tgt_sizes": [torch.tensor([[4, 4]] * count)],
        "image_bound": [bounds],
    }
    labels = text.clone()
    labels[:, 4 : 4 + count * queries] = IGNORED
    return {"data": data, "labels": labels}


def mean_gradients(model: Any, batches: list[Batch]) -> dict[str, torch.Tensor]:
    for batch in batches:
        (model(**batch).loss / len(batches)).backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def train(
    kind: str,
    folder: Path,
    rank: int,
    meet: Any,
    make: Callable[[Path], list[Batch]],
    engine: str = "zero3",
) -> float:
    """One backward: the largest relative difference of any gradient."""
    model = loading.load(Cell(kind), folder)
    batches = make(folder)
    right = mean_gradients(model, batches)
    with meet():
        trained = engines.ENGINES[engine](Cell(kind, engine, "full"), model)
        trained.backward(trained.forward(batches[rank]))
        with trained.gathered():
            got = recording.gradients(trained, model)
    worst = 0.0
    for name in {*got, *right}:
        zero = torch.zeros(())
        value = right.get(name, zero)
        scale = max(float(value.abs().max()), 1e-4)
        worst = max(worst, float((got.get(name, zero) - value).abs().max()) / scale)
    return worst


def statistics(kind: str, folder: Path, rank: int, meet: Any, engine: str = "zero3") -> float:
    """How much a step moved the running means of a rank that had nothing to see."""
    model: Any = loading.load(Cell(kind), folder)
    if model.supports_gradient_checkpointing:
        model.gradient_checkpointing_enable()
    batch = image_and_text(folder)[rank]
    before = {name: value.clone() for name, value in model.named_buffers()}
    with meet():
        trained = engines.ENGINES[engine](Cell(kind, engine, "full"), model)
        trained.backward(trained.forward(batch))
        now = dict(model.named_buffers())
        moved = max(float((now[name] - value).abs().max()) for name, value in before.items())
    if rank == 0 and not moved:
        raise RuntimeError("nothing moves a buffer")
    return moved if rank else 0.0


def evaluate(kind: str, folder: Path, rank: int, meet: Any, engine: str = "zero3") -> float:
    model = loading.load(Cell(kind), folder).eval()
    batch = image_and_text(folder)[rank]
    with torch.no_grad():
        right = model(**batch).logits
    with meet():
        whole = engines.ENGINES[engine](Cell(kind, engine, "full"), model).whole().eval()
        with torch.no_grad():
            got = whole(**batch).logits
    return float((got - right).abs().max() / right.abs().max())


def evaluate_between(kind: str, folder: Path, rank: int, meet: Any) -> float:
    """Between two backwards, of which ZeRO-3 remembers the order of modules: an image now here, now there.

    The mean loss of each batch is asked for, as evaluations do.
    """
    model = loading.load(Cell(kind), folder).eval()
    batches = image_and_text(folder)[:: 1 - 2 * rank] * 2
    with torch.no_grad():
        right = [model(**batch).loss for batch in batches]
    worst = 0.0
    with meet():
        engine = engines.DeepSpeed(Cell(kind, "zero3", "full"), model)
        for _ in range(2):
            engine.engine.train()
            engine.backward(engine.forward(batches[0]))
            engine.engine.eval()
            for batch, loss in zip(batches, right, strict=True):
                with torch.no_grad():
                    got = engine.forward(batch)
                worst = max(worst, float((got - loss).abs()))
                torch.distributed.all_reduce(got)
    return worst


def generate(kind: str, folder: Path, rank: int, meet: Any) -> float:
    model: Any = loading.load(Cell(kind), folder).eval()
    model.config.use_cache = True
    batch = image_and_text(folder)[rank]
    taken = inspect.signature(model.forward).parameters
    batch = {name: value for name, value in batch.items() if name != "labels" and name in taken}
    told = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    right = model.generate(**batch, **told)
    with meet():
        engine = zero3(model)
        engine.eval()
        got = engine.module.generate(**batch, **told, synced_gpus=True)
    return float((got != right).sum())


def zero3(model: Any) -> Any:
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    collectives.wait_for_every_collective()
    config = engines.deepspeed_config(Cell(engine="zero3"))
    return deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)[0]


SCENARIOS: dict[str, Callable[..., float]] = {
    "text": functools.partial(train, make=image_and_text),
    "image-and-both": functools.partial(train, make=image_and_both),
    "video-and-text": functools.partial(train, make=video_and_text),
    "video-and-text-zero2": functools.partial(train, make=video_and_text, engine="zero2"),
    "video-and-text-fsdp2": functools.partial(train, make=video_and_text, engine="fsdp2"),
    "video-and-text-fsdp1": functools.partial(train, make=video_and_text, engine="fsdp1"),
    "slices": functools.partial(train, make=slices),
    "statistics": statistics,
    "statistics-fsdp2": functools.partial(statistics, engine="fsdp2"),
    "evaluate": evaluate,
    "evaluate-fsdp1": functools.partial(evaluate, engine="fsdp1"),
    "evaluate-fsdp2": functools.partial(evaluate, engine="fsdp2"),
    "evaluate-between": evaluate_between,
    "generate": generate,
}


def one_rank(scenario: str, kind: str, folder: Path, out: Path, rank: int, port: int) -> None:
    written = out / f"{scenario}-{kind}-{rank}.json"
    ranks.log_to(written.with_suffix(".log"))
    try:
        found = SCENARIOS[scenario](kind, folder, rank, lambda: ranks.process_group(rank, port))
        written.write_text(json.dumps({"difference": found}))
    except Exception as error:
        traceback.print_exc()
        written.write_text(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        raise SystemExit(1) from None


def run(scenario: str, kind: str, folder: Path, out: Path) -> dict[str, Any]:
    written = [out / f"{scenario}-{kind}-{rank}.json" for rank in range(WORLD)]
    forks.run(one_rank, scenario, kind, folder, out, world=WORLD, port=free_port(), limit=LIMIT, grace=5)
    reports = [json.loads(p.read_text()) if p.exists() else {"error": "no report"} for p in written]
    errors = [report["error"] for report in reports if "error" in report]
    worst = max((report.get("difference", 0.0) for report in reports), default=0.0)
    return {"id": f"{scenario}:{kind}", "error": next(iter(errors), None), "difference": worst}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.mixed_ranks")
    parser.add_argument("scenarios", nargs="+", metavar="SCENARIO:KIND")
    parser.add_argument("--models", nargs="+", required=True, metavar="KIND=FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--patched", action="store_true", help="import vlmpatch first")
    asked = parser.parse_args()
    models = dict(pair.split("=", 1) for pair in asked.models)
    asked.out.mkdir(parents=True, exist_ok=True)
    engines.preload_engine()
    for name in asked.scenarios:
        scenario, kind = name.split(":")
        print(json.dumps(run(scenario, kind, Path(models[kind]), asked.out)), flush=True)


if __name__ == "__main__":
    main()
