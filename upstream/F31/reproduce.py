"""An adapter of Qwen2-VL that was saved before transformers 4.52 is not loaded.

    python reproduce.py      # 1 where weights are those of an untrained adapter, 0 where loaded; one process

Before 4.52 the language model's layers were ``model.layers``; they are ``model.language_model.layers`` since.
"""

import sys
import tempfile
import warnings

import peft
import safetensors.torch
import torch
import transformers
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

warnings.simplefilter("ignore")
text = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
vision = {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 4, "patch_size": 8}
config = Qwen2VLConfig(text_config=text, vision_config=vision)
lora = peft.LoraConfig(target_modules=["q_proj", "qkv"], init_lora_weights=False)
with tempfile.TemporaryDirectory() as folder:
    trained = peft.get_peft_model(Qwen2VLForConditionalGeneration(config), lora)
    trained.save_pretrained(folder)
    saved = safetensors.torch.load_file(file := f"{folder}/adapter_model.safetensors")
    old = {
        name.replace(".model.language_model.", ".model.").replace(".model.visual.", ".visual."): tensor
        for name, tensor in saved.items()
    }
    safetensors.torch.save_file(old, file)  # as transformers 4.51 named them
    loaded = peft.PeftModel.from_pretrained(Qwen2VLForConditionalGeneration(config), folder)
right, found = trained.state_dict(), loaded.state_dict()
adapter = [name for name in right if ".lora_" in name]
lost = sum(not torch.equal(right[name], found[name]) for name in adapter)
print(f"peft {peft.__version__}, transformers {transformers.__version__}")
print(f"{lost} of {len(adapter)} adapter weights were not loaded")
sys.exit(lost > 0)
