"""A Qwen3-VL-MoE that was saved without ZeRO-3 cannot be loaded with it.

python reproduce.py      # 1 where it cannot, 0 where it is loaded; one process, no GPU
"""

import os
import sys
import tempfile

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import transformers
from torch import distributed
from transformers import Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration
from transformers.integrations import HfDeepSpeedConfig

text = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 1,
    "moe_intermediate_size": 48,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
}  # fmt: skip
vision = {
    "depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64,
    "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
}  # fmt: skip

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
print(f"transformers {transformers.__version__}, deepspeed {deepspeed.__version__}")
with tempfile.TemporaryDirectory() as folder:
    model = Qwen3VLMoeForConditionalGeneration(Qwen3VLMoeConfig(text_config=text, vision_config=vision))
    model.save_pretrained(folder)
    Qwen3VLMoeForConditionalGeneration.from_pretrained(folder)
    print("loaded without ZeRO-3")
    told = HfDeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}})
    try:
        loaded = Qwen3VLMoeForConditionalGeneration.from_pretrained(folder)
        failed = False
    except RuntimeError as error:
        print(f"with ZeRO-3: {str(error).splitlines()[1].strip()}")
        failed = True
distributed.destroy_process_group()
sys.exit(failed)
