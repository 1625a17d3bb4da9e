"""``generate()`` of a model in training mode with gradient checkpointing gives other tokens than without it.

python reproduce.py      # 1 where the tokens differ, 0 where they are the same; one process, no GPU
"""

import sys

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
config = LlamaConfig(vocab_size=97, bos_token_id=1, eos_token_id=None, pad_token_id=0, **sizes)
config.initializer_range = 0.5  # so that a small random model has something to say
model = LlamaForCausalLM(config).train()
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
