"""Packed rows: whether they attend to one another depends on ``use_cache``, which is True by default.

python reproduce.py      # 1 where the second row depends on the first, 0 where not; one process, no GPU
"""

import sys

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=97, attn_implementation="sdpa", **sizes)).train()
first, second = torch.randint(3, 97, (1, 7)), torch.randint(3, 97, (1, 9))
packed = {
    "input_ids": torch.cat([first, second], 1),
    "position_ids": torch.cat([torch.arange(7), torch.arange(9)])[None],
}
alone = model(input_ids=second).logits
off = {}
for said in ({"use_cache": False}, {}):
    logits = model(**packed, **said).logits[:, 7:]
    off[str(said or "nothing said")] = float(((logits - alone).norm() / alone.norm()).detach())
print(f"transformers {transformers.__version__}")
print(*(f"{said}: the second row's logits are {value:.1e} off" for said, value in off.items()), sep="\n")
sys.exit(max(off.values()) > 1e-4)
