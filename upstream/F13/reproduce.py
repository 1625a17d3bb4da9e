"""Image features cannot be written into the embeddings once ``enable_input_require_grads()`` was called.

python reproduce.py      # 1 where that ends in an error, 0 where it trains; one process, no GPU

Many models of the hub write them in place. transformers 5 calls it for every checkpointed model.
"""

import sys

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
language = LlamaForCausalLM(LlamaConfig(vocab_size=97, **sizes)).train()
projector = torch.nn.Linear(16, 64)
language.get_input_embeddings().requires_grad_(False)
language.enable_input_require_grads()

ids = torch.arange(8)[None]
embeddings = language.get_input_embeddings()(ids)
said = "nothing"
try:
    embeddings[0, 2:6] = projector(torch.randn(4, 16))
    language(inputs_embeds=embeddings, labels=ids).loss.backward()
except RuntimeError as error:
    said = str(error)
print(f"transformers {transformers.__version__}\nerror: {said}")
sys.exit(projector.weight.grad is None)
