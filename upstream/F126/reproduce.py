"""FSDP1 with accelerate's mixed precision rounds the frequencies of rotary positions.

python reproduce.py      # 1 where an angle is off, 0 where not; one process, no GPU
"""

import sys

import accelerate
import torch
import transformers
from torch import distributed
from torch.distributed.fsdp import FullyShardedDataParallel

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
print(
    f"accelerate {accelerate.__version__}, torch {torch.__version__}, transformers {transformers.__version__}"
)
config = transformers.Qwen2Config(
    vocab_size=64, hidden_size=256, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, bos_token_id=None, eos_token_id=None,
)  # fmt: skip
model = transformers.Qwen2ForCausalLM(config)
right = model.model.rotary_emb.inv_freq.clone()

plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=1)
plugin.set_mixed_precision("bf16")
sharded = FullyShardedDataParallel(
    model, mixed_precision=plugin.mixed_precision_policy, device_id=torch.device("cpu"), use_orig_params=True
)
sharded(input_ids=torch.ones(1, 4, dtype=torch.long))
off = (4000 * (model.model.rotary_emb.inv_freq.float() - right)).abs().max().item()
print(f"the angle of position 4000 is off by {off:.1f} radians")
distributed.destroy_process_group()
sys.exit(off > 1e-3)
