"""A prefix does not train where checkpointing is enabled after ``get_peft_model``.

    python reproduce.py      # 1 where the prefix gets no gradient, or a wrong one; 0 where right; one process

The Trainer enables it there, with ``gradient_checkpointing=True``.
"""

import sys

import peft
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
ids = torch.arange(9)[None]


def trained(checkpointing: bool) -> torch.Tensor | None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)).train()
    model = peft.get_peft_model(model, peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model(input_ids=ids, labels=ids).loss.backward()
    (prefix,) = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return prefix.grad


right = trained(checkpointing=False)
print(f"peft {peft.__version__}, transformers {transformers.__version__}")
try:
    found = trained(checkpointing=True)
except RuntimeError as error:
    print(error)
    sys.exit(1)
print(f"gradient of the prefix: {(said := 'none' if found is None else float((found - right).norm()))}")
sys.exit(said == "none" or said > 1e-6)
