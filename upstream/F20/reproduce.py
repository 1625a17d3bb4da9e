"""A layer that torch's ``checkpoint_wrapper`` wraps appends to the KV cache twice.

    python reproduce.py      # 1 where the gradients are wrong or missing, 0 where right; one process, no GPU

``use_cache`` is not mentioned, and so True. The wrapper is what FSDP's ``activation_checkpointing`` applies.
"""

import sys

import torch
import transformers
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from transformers import LlamaConfig, LlamaForCausalLM

sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
ids = torch.arange(46).reshape(2, 23)
mask = torch.ones_like(ids)
mask[0, :5] = 0  # padded, as a batch of rows of several lengths


def trained(wrapped: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)).train()
    if wrapped:
        model.model.layers = torch.nn.ModuleList(map(checkpoint_wrapper, model.model.layers))
    model(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
    return [parameter.grad for parameter in model.parameters()]


right = trained(wrapped=False)
print(f"transformers {transformers.__version__}, torch {torch.__version__}")
try:
    found = trained(wrapped=True)
except Exception as error:
    print(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
    sys.exit(1)
wrong = sum(not torch.allclose(one, other) for one, other in zip(found, right, strict=True))
print(f"{wrong} of {len(right)} gradients are wrong")
sys.exit(wrong > 0)
