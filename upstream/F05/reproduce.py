"""Under ``use_reentrant=True`` what is trained in Qwen3-VL's vision tower gets no gradient.

    python reproduce.py      # 1 where gradients are missing, 0 where none is; one process, no GPU

A projection of each block is trained, as LoRA would; the rest is frozen. ``enable_input_require_grads()`` is
called as peft and the Trainer do.
"""

import sys

import torch
import transformers
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

torch.manual_seed(0)
rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3], "mrope_interleaved": True}
text = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rope_parameters": rope,
}  # fmt: skip
vision = {
    "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "patch_size": 8,
    "out_hidden_size": 64, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
}  # fmt: skip
tokens = {"vision_start_token_id": 3, "vision_end_token_id": 4, "image_token_id": 5, "video_token_id": 6}
config = Qwen3VLConfig(text_config=text, vision_config=vision, **tokens)
model = Qwen3VLForConditionalGeneration(config).train()
for name, parameter in model.named_parameters():
    parameter.requires_grad_("attn.qkv" in name or "q_proj" in name)
model.enable_input_require_grads()
model.gradient_checkpointing_enable({"use_reentrant": True})

ids = torch.tensor([[3, 5, 5, 5, 5, 4, *range(10, 22)]])
image = {"pixel_values": torch.randn(16, 2 * 3 * 8 * 8), "image_grid_thw": torch.tensor([[1, 4, 4]])}
kinds = {"mm_token_type_ids": (ids == 5).int()}
model(input_ids=ids, labels=ids.masked_fill(ids < 10, -100), **image, **kinds).loss.backward()
missing = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
print(f"transformers {transformers.__version__}\nwithout a gradient: {', '.join(missing) or 'nothing'}")
sys.exit(bool(missing))
