"""A Qwen2-VL in bf16 on GPUs; runs in a rank that torchrun started.

    torchrun -m tests.gpu.train '{"engine": "zero2", …}' [--patched]

Prints what a step costs, and keeps the first step's gradients in a file where it is asked to.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if "--patched" in sys.argv:
    import vlmpatch  # noqa: F401

import torch
import transformers
from torch import distributed

from bench.python_calls import python_calls

SIZES = {
    # hidden, layers, width of the MLP, width and depth of the tower, sides of an image in patches
    "small": (256, 4, 512, 128, 4, 8),
    "large": (2048, 12, 8192, 1024, 12, 64),
}
IMAGE = 3  # the token that an image's features take the place of
WARM = 3  # steps that are not timed


@dataclasses.dataclass(frozen=True)
class Cell:
    engine: str = "none"  # none, ddp, zero2, zero3, fsdp1, fsdp2
    tuning: str = "lora"  # lora, qlora, full
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
    model = made(cell)  # before any group is: in one, the first rank alone writes what bitsandbytes loads
    if cell.engine != "none":
        distributed.init_process_group(cell.backend)
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
        said = {"losses": losses, "peak_mib": round(peak), "seconds": statistics.median(timed)}
        print(json.dumps({**said, **(counted(run) if cell.steps > WARM else {})}))
    if distributed.is_initialized():
        distributed.destroy_process_group()


def counted(run: Callable[..., Any]) -> dict[str, int]:
    """What a step asks of the GPU and of Python: the same on a busy machine, where its time is not."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        run(keep=False)
        torch.cuda.synchronize()
    times = {each.key: each.count for each in seen.key_averages()}
    return {
        "kernels": sum(count for name, count in times.items() if name.startswith("cudaLaunchKernel")),
        "waits": times.get("cudaStreamSynchronize", 0),
        "calls": python_calls(lambda: run(keep=False)),
    }


def made(cell: Cell) -> Any:
    """The model with random weights, the same in every process."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = transformers.Qwen2VLForConditionalGeneration(config_of(cell))
    model = model.to(getattr(torch, cell.dtype)).train()
    if cell.tuning == "qlora":
        model = in_four_bits(cell, model)
    if cell.tuning != "full":
        model = adapted(model)
    if cell.checkpointing != "off":
        model.enable_input_require_grads()
        said = {"use_reentrant": False} if cell.checkpointing == "nonreentrant" else None
        model.gradient_checkpointing_enable(said)
    return model


def config_of(cell: Cell) -> Any:
    hidden, layers, mlp, tower, depth, _ = SIZES[cell.size]
    heads = hidden // 64
    text = {
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "vocab_size": 4096,
        "rope_scaling": {"rope_type": "default", "type": "mrope", "mrope_section": [8, 12, 12]},
        "use_cache": False,
        "tie_word_embeddings": False,
    }
    vision = {"depth": depth, "embed_dim": tower, "hidden_size": hidden, "num_heads": tower // 64}
    ids = {"vision_start_token_id": 1, "vision_end_token_id": 2, "image_token_id": IMAGE, "video_token_id": 4}
    config = transformers.Qwen2VLConfig(text_config=text, vision_config=vision, **ids)
    config.tie_word_embeddings = False
    return config


def in_four_bits(cell: Cell, model: Any) -> Any:
    """As it is loaded again by bitsandbytes; FSDP wants one dtype of all weights."""
    dtype = getattr(torch, cell.dtype)
    said = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_quant_storage=dtype,
        llm_int8_skip_modules=["lm_head", "merger"],
    )
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        model = type(model).from_pretrained(
            folder, torch_dtype=dtype, quantization_config=said, device_map={"": torch.cuda.current_device()}
        )
    model.config.use_cache = False
    return model.train()


def adapted(model: Any) -> Any:
    """LoRA on the language model and on the tower."""
    import peft

    names = r".*(q_proj|v_proj|down_proj|qkv|mlp\.fc1)"
    model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=names, lora_dropout=0.0))
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    return model


def batch(cell: Cell, rank: int) -> dict[str, torch.Tensor]:
    """One row: two images and text, or text alone."""
    side = SIZES[cell.size][-1]
    generator = torch.Generator().manual_seed(100 + rank)
    words = torch.randint(10, 4096, (1, 64), generator=generator)
    if cell.mixed and rank == cell.ranks - 1:
        return on_gpu({"input_ids": words, "labels": words})
    one = [1, *[IMAGE] * (side * side // 4), 2]
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
    found["attention_mask"] = torch.ones_like(found["input_ids"])
    if int(transformers.__version__.partition(".")[0]) > 4:  # which asks what each token is
        found["mm_token_type_ids"] = (found["input_ids"] == IMAGE).int()
    return found


def write(cell: Cell, named: Any) -> None:
    """Write the gradients down; ZeRO's are put together by every rank."""
    found = {name: value.detach().float().cpu() for name, value in named if value is not None}
    if int(os.environ.get("RANK", 0)) == 0:
        torch.save(found, Path(cell.gradients))


def trained(model: Any) -> Any:
    """What is trained, by the names that the model without a wrapper has."""
    inside = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
    named = ((name.replace("_fsdp_wrapped_module.", ""), each) for name, each in inside.named_parameters())
    return ((name, each) for name, each in named if each.requires_grad)


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
            with gathered(model):
                write(cell, ((name, whole(each.grad)) for name, each in trained(model)))
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def gathered(model: Any) -> contextlib.AbstractContextManager[Any]:
    """Within it FSDP1's parameters are whole, and their gradients with them."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    if not isinstance(model, FullyShardedDataParallel):
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = model.summon_full_params(
        model, writeback=False, with_grads=True
    )
    return context


def whole(tensor: Any) -> Any:
    """What FSDP2 keeps in shards, put together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def ddp(cell: Cell, model: Any, mine: list[Any]) -> Any:
    return plain(cell, torch.nn.parallel.DistributedDataParallel(model), mine)


def blocks_of(model: Any) -> list[Any]:
    return [
        each
        for each in model.modules()
        if type(each).__name__ in ("Qwen2VLDecoderLayer", "Qwen2VLVisionBlock")
    ]


def fsdp1(cell: Cell, model: Any, mine: list[Any]) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import CustomPolicy

    blocks = blocks_of(model)
    policy = CustomPolicy(lambda module: any(module is block for block in blocks))
    device = torch.device("cuda", torch.cuda.current_device())
    return plain(
        cell,
        FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=True, device_id=device),
        mine,
    )


def fsdp2(cell: Cell, model: Any, mine: list[Any]) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cuda", (cell.ranks,))
    for module in (*blocks_of(model), model):
        fully_shard(module, mesh=mesh)
    return plain(cell, model, mine)


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


ENGINES = {"none": plain, "ddp": ddp, "zero2": zero(2), "zero3": zero(3), "fsdp1": fsdp1, "fsdp2": fsdp2}

if __name__ == "__main__":
    main()
