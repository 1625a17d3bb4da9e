"""``generate()`` of a GPT-2 in training mode with gradient checkpointing gives other tokens than without it.

python reproduce.py      # 1 where the tokens differ, 0 where they are the same; one process, no GPU
"""

import sys

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=97, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=None
)
config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
config.initializer_range = 0.5  # so that a small random model has something to say
config.pad_token_id = 0
model = GPT2LMHeadModel(config).train()
prompt = torch.tensor([[5, 17, 42, 61, 7]])


def answer() -> list[int]:
    return model.generate(prompt, max_new_tokens=8, do_sample=False)[0, prompt.shape[1] :].tolist()


right = answer()
model.gradient_checkpointing_enable()
found = answer()
print(
    f"transformers {transformers.__version__}\nwithout checkpointing {right}\nwith checkpointing    {found}"
)
sys.exit(found != right)
