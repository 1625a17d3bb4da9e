"""``Qwen2VLTemplate`` cannot collate a text that is streamed beside rows with images.

python reproduce.py      # 1 where the batch cannot be collated, 0 where it can; one process, no GPU

Rows of a stream share their columns: a text comes with the ``mm_token_type_ids`` of the others, as ``None``.
"""

import sys
from types import SimpleNamespace

import swift
import transformers
from packaging import version
from swift.template.templates.qwen import Qwen2VLTemplate
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

text = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 4, "bos_token_id": 1, "eos_token_id": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
}  # fmt: skip
vision = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 8}
tokens = {"vision_start_token_id": 3, "vision_end_token_id": 4, "image_token_id": 5, "video_token_id": 6}


class Template(Qwen2VLTemplate):
    """What the collator asks of a template, without a checkpoint's files."""

    tokenizer = SimpleNamespace(pad_token_id=0)
    is_training, padding_side = True, "right"
    use_megatron, padding_free, sequence_parallel_size = False, False, 1

    def __init__(self) -> None:
        self.transformers_version = version.parse(transformers.__version__)
        self.transformers_5_3, self.transformers_5_9 = True, self.transformers_version >= version.parse("5.9")
        config = Qwen2VLConfig(text_config=text, vision_config=vision, **tokens)
        self.model = Qwen2VLForConditionalGeneration(config)

    def _get_model(self) -> Qwen2VLForConditionalGeneration:
        return self.model


print(f"ms-swift {swift.__version__}, transformers {transformers.__version__}")
row = {"input_ids": [10, 11, 12], "labels": [10, 11, 12], "mm_token_type_ids": None, "pixel_values": None}
try:
    batch = Template()._data_collator([row])
except TypeError as error:
    print(f"TypeError: {str(error).split('.')[-1]}")
    sys.exit(1)
print(f"collated: {sorted(batch)}")
