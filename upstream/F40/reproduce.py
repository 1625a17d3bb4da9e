"""FSDP by accelerate refuses a model that lacks one of the classes its ``_no_split_modules`` names.

    python reproduce.py      # 1 where it does, 0 where not; one process, no GPU

Nobody named a class: ``_no_split_modules`` is what accelerate takes where nothing is said.
"""

import sys

import accelerate
from accelerate import FullyShardedDataParallelPlugin
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
vision = CLIPVisionConfig(**sizes, image_size=28, patch_size=14)
text = LlamaConfig(vocab_size=97, **sizes)
model = LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text))
plugin = FullyShardedDataParallelPlugin(auto_wrap_policy="transformer_based_wrap")
said = "nothing"
try:
    plugin.set_auto_wrap_policy(model)
except ValueError as error:
    said = str(error)
print(f"accelerate {accelerate.__version__}, {sorted(model._no_split_modules)}\nerror: {said}")
sys.exit(said != "nothing")
