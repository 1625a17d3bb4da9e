"""A Qwen2-VL in bf16 on GPUs; runs in a rank that torchrun started.

    torchrun -m tests.gpu.train '{"engine": "zero2", …}' [--patched]

Prints what a step costs, and keeps the first step's gradients in a file where it is asked to.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

if "--patched" in sys.argv:
    import vlmpatch  # noqa: F401

import torch
from torch import distributed

SIZES = {
    # hidden, layers, width of the MLP, width and depth of the tower, sides of an image in patches
    "small": (256, 4, 512, 128, 4, 8),
    "large": (2048, 12, 8192, 1024, 12, 64),
}
WARM = 3  # steps that are not timed


@dataclasses.dataclass(frozen=True)
class Cell:
    engine: str = "none"  # none, ddp, zero2, zero3
    tuning: str = "lora"  # lora, full
    checkpointing: str = "default"  # off, default (what transformers asks for), nonreentrant
    mixed: bool = False  # the last rank has no image
    size: str = "small"
    dtype: str = "bfloat16"
    backend: str = "nccl"
    ranks: int = 1  # whose samples there are; without an engine one process takes them all
    steps: int = 1
    gradients: str = ""  # where they go


def main() -> None:
    cell = Cell(**json.loads(sys.argv[1]))
    rank = int(os.environ.get("RANK", 0))
    device = rank % torch.cuda.device_count()
    os.environ["LOCAL_RANK"] = str(device)  # DeepSpeed takes the GPU of that number
    torch.cuda.set_device(device)
    if cell.engine != "none":
        distributed.init_process_group(cell.backend)
    model = made(cell)
    batches = [batch(cell, each) for each in range(cell.ranks)]
    mine = batches if cell.engine == "none" else [batches[rank]]
    run = ENGINES[cell.engine](cell, model, mine)
    torch.cuda.reset_peak_memory_stats()
    losses, seconds = [], []
    for number in range(cell.steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        losses.append(float(run(keep=bool(cell.gradients) and number == 0)))
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() / 2**20
    if rank == 0:
        timed = seconds[WARM:] or seconds
        print(json.dumps({"losses": losses, "peak_mib": round(peak), "seconds": statistics.median(timed)}))
    if distributed.is_initialized():
        distributed.destroy_process_group()


def made(cell: Cell) -> Any:
    """The model with random weights, the same in every process."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    hidden, layers, mlp, tower, depth, _ = SIZES[cell.size]
    heads = hidden // 64
    text = {
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "vocab_size": 4096,
        "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
        "use_cache": False,
    }
    vision = {"depth": depth, "embed_dim": tower, "hidden_size": hidden, "num_heads": tower // 64}
    ids = {"vision_start_token_id": 1, "vision_end_token_id": 2, "image_token_id": 3, "video_token_id": 4}
    torch.manual_seed(0)
    config = Qwen2VLConfig(**text, vision_config=vision, **ids)
    model = Qwen2VLForConditionalGeneration(config).to(getattr(torch, cell.dtype)).cuda().train()
    if cell.tuning == "lora":
        import peft

        names = r".*(q_proj|v_proj|down_proj|qkv|mlp\.fc1)"
        model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=names, lora_dropout=0.0))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.02)
    if cell.checkpointing != "off":
        model.enable_input_require_grads()
        said = {"use_reentrant": False} if cell.checkpointing == "nonreentrant" else None
        model.gradient_checkpointing_enable(said)
    return model


def batch(cell: Cell, rank: int) -> dict[str, torch.Tensor]:
    """One row: two images and text, or text alone."""
    side = SIZES[cell.size][-1]
    generator = torch.Generator().manual_seed(100 + rank)
    words = torch.randint(10, 4096, (1, 64), generator=generator)
    if cell.mixed and rank == cell.ranks - 1:
        return on_gpu({"input_ids": words, "labels": words})
    one = [1, *[3] * (side * side // 4), 2]
    ids = torch.cat([torch.tensor([one + one]), words], dim=1)
    patches = torch.randn(2 * side * side, 3 * 2 * 14 * 14, generator=generator)
    return on_gpu(
        {
            "input_ids": ids,
            "labels": ids.masked_fill(ids < 10, -100),
            "pixel_values": patches.to(getattr(torch, cell.dtype)),
            "image_grid_thw": torch.tensor([[1, side, side]] * 2),
        }
    )


def on_gpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {name: value.cuda() for name, value in tensors.items()}
    return {**found, "attention_mask": torch.ones_like(found["input_ids"])}


def write(cell: Cell, named: Any) -> None:
    """Write the gradients down; ZeRO's are put together by every rank."""
    found = {name: value.detach().float().cpu() for name, value in named if value is not None}
    if int(os.environ.get("RANK", 0)) == 0:
        torch.save(found, Path(cell.gradients))


def trained(model: Any) -> Any:
    """What is trained, by the names that the model without a wrapper has."""
    inside = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
    return ((name, each) for name, each in inside.named_parameters() if each.requires_grad)


def plain(cell: Cell, model: Any, mine: list[Any]) -> Any:
    """No engine: the mean over the samples of all ranks, in one process."""
    optimizer = torch.optim.AdamW([each for _, each in trained(model)], lr=1e-5)

    def step(keep: bool) -> Any:
        total = 0.0
        for each in mine:
            loss = model(**each).loss / len(mine)
            loss.backward()
            total += loss.detach()
        if keep:
            write(cell, ((name, each.grad) for name, each in trained(model)))
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def ddp(cell: Cell, model: Any, mine: list[Any]) -> Any:
    return plain(cell, torch.nn.parallel.DistributedDataParallel(model), mine)


def zero(stage: int) -> Any:
    def engine_of(cell: Cell, model: Any, mine: list[Any]) -> Any:
        import deepspeed
        from deepspeed.utils import safe_get_full_grad

        deepspeed.init_distributed(dist_backend=cell.backend)
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": 0.0,
            "bf16": {"enabled": cell.dtype == "bfloat16"},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},
        }
        parameters = [each for _, each in trained(model)]
        engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=parameters)

        def step(keep: bool) -> Any:
            loss = engine(**mine[0]).loss
            engine.backward(loss)
            if keep:
                write(cell, ((name, safe_get_full_grad(each)) for name, each in trained(engine.module)))
            engine.step()
            return loss.detach()

        return step

    return engine_of


ENGINES = {"none": plain, "ddp": ddp, "zero2": zero(2), "zero3": zero(3)}

if __name__ == "__main__":
    main()
