"""Under ``use_reentrant=True`` Gemma 4's layers that share keys and values have wrong gradients.

python reproduce.py      # 1 where they are not those without checkpointing, 0 where they are; one process
"""

import sys

import torch
import transformers
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

torch.manual_seed(0)
config = Gemma4TextConfig(
    vocab_size=97, vocab_size_per_layer_input=97, hidden_size=64, hidden_size_per_layer_input=8,
    intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, global_head_dim=16, sliding_window=16, num_kv_shared_layers=2,
    layer_types=["sliding_attention", "full_attention"] * 2,
)  # fmt: skip
model = Gemma4ForCausalLM(config).train()
ids = torch.randint(3, 97, (1, 12))


def gradients() -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


right = gradients()
model.gradient_checkpointing_enable({"use_reentrant": True})
model.enable_input_require_grads()
found = gradients()
off = {name: float((found[name] - each).norm() / each.norm()) for name, each in right.items() if each.any()}
worst = max(off, key=off.__getitem__)
print(f"transformers {transformers.__version__}\n{worst} is {off[worst]:.0%} off")
sys.exit(off[worst] > 1e-4)
