"""Packed texts in Qwen2-VL: whether they attend to one another depends on how many rows their positions have.

python reproduce.py      # 1 where the second text depends on the first, 0 where not; one process, no GPU
"""

import sys

import torch
import transformers
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

torch.manual_seed(0)
rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
text = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_parameters": rope,
    "rope_scaling": rope,
}
vision = {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 4}
tokens = {"image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93}
config = Qwen2VLConfig(text_config=text, vision_config=vision, **tokens)
model = Qwen2VLForConditionalGeneration(config).train()
first, second = torch.randint(3, 80, (1, 7)), torch.randint(3, 80, (1, 9))
packed = torch.cat([first, second], 1)
positions = torch.cat([torch.arange(7), torch.arange(9)])[None]  # as DataCollatorWithFlattening has them
alone = model(input_ids=second, use_cache=False).logits
off = {}
for name, rows in (("four rows", positions.expand(4, -1, -1)), ("one row", positions)):
    logits = model(input_ids=packed, position_ids=rows, use_cache=False).logits[:, 7:]
    off[name] = float(((logits - alone).norm() / alone.norm()).detach())
print(f"transformers {transformers.__version__}")
print(
    *(f"{name} of positions: the second text's logits are {o:.1e} off" for name, o in off.items()), sep="\n"
)
sys.exit(max(off.values()) > 1e-4)
