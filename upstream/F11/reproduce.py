"""A rank whose batch has no image never runs the vision tower, and the other ranks wait for it.

    python reproduce.py      # 1 where the step does not end on both ranks, 0 where it does; two ranks, no GPU

The model is sharded by FSDP2. ZeRO-3 is the same; DDP and ZeRO-2 wait for gradients in place of weights.
"""

import multiprocessing
import os
import socket
import sys
from datetime import timedelta

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import transformers
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

LIMIT = 30  # seconds; the step takes one
text = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "bos_token_id": 1, "eos_token_id": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
}  # fmt: skip
vision = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 4, "patch_size": 8}
tokens = {"vision_start_token_id": 3, "vision_end_token_id": 4, "image_token_id": 5, "video_token_id": 6}


def batch(with_image: bool) -> dict[str, torch.Tensor]:
    ids = torch.tensor([[3, 5, 4, *range(10, 23)] if with_image else [*range(10, 26)]])
    found = {"input_ids": ids, "labels": ids, "mm_token_type_ids": (ids == 5).int()}
    if with_image:
        found |= {"pixel_values": torch.ones(4, 2 * 3 * 8 * 8), "image_grid_thw": torch.tensor([[1, 2, 2]])}
    return found


def train(rank: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.init_process_group("gloo", timeout=timedelta(seconds=LIMIT))
    torch.manual_seed(0)
    model = Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=text, vision_config=vision, **tokens))
    mesh = init_device_mesh("cpu", (2,))
    for block in (*model.model.visual.blocks, *model.model.language_model.layers, model):
        fully_shard(block, mesh=mesh)
    try:
        model.train()(**batch(with_image=rank == 0)).loss.backward()
    except RuntimeError:  # gloo sees that sizes differ; NCCL waits
        sys.exit(1)
    distributed.barrier()
    distributed.destroy_process_group()


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
context = multiprocessing.get_context("fork")
ranks = [context.Process(target=train, args=(rank, port)) for rank in (0, 1)]
for process in ranks:
    process.start()
for process in ranks:
    process.join(3 * LIMIT)
    process.kill()
ended = not any(process.exitcode for process in ranks)
print(f"transformers {transformers.__version__}, torch {torch.__version__}")
print(f"the step {'ends' if ended else 'does not end'} on both ranks")
sys.exit(not ended)
