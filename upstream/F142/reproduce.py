"""A base model that FSDP2 has sharded: whether it records the hidden states that it is asked for.

python reproduce.py      # 1 where they are None, 0 where not; one process, gloo, no GPU
"""

import sys

import torch
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaModel

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaModel(LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=97))
ids = torch.arange(2, 14).reshape(1, 12)
print(f"transformers {transformers.__version__}")


def recorded() -> int:
    states = model(input_ids=ids, output_hidden_states=True).hidden_states
    return 0 if states is None else len(states)


before = recorded()
fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
after = recorded()
print(f"hidden states: {before} before fully_shard, {after} after it")
torch.distributed.destroy_process_group()
sys.exit(after != before)
