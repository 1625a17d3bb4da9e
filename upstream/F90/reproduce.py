"""A frozen vision tower keeps its activations once ``enable_input_require_grads()`` was called.

python reproduce.py      # 1 where it keeps any, 0 where it keeps none; one process, no GPU
"""

import sys

import torch
import transformers
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
vision = CLIPVisionConfig(**sizes, image_size=28, patch_size=14)
text = LlamaConfig(vocab_size=97, **sizes)
model = LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text)).train()
tower = model.model.vision_tower
tower.requires_grad_(False)
model.gradient_checkpointing_enable()
tower.gradient_checkpointing_disable()  # it is frozen: there should be nothing to save
model.enable_input_require_grads()  # as peft and the Trainer do

kept: dict[int, int] = {}


def count(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, torch.nn.Parameter):
        kept[tensor.data_ptr()] = tensor.nbytes
    return tensor


with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
    tower(torch.randn(1, 3, 28, 28))
print(f"transformers {transformers.__version__}\nthe frozen tower keeps {sum(kept.values()):,} bytes")
sys.exit(bool(kept))
