"""Label smoothing: a vision-language model learns to repeat the token that it reads.

python reproduce.py      # 1 where the smoothed loss is that of unshifted labels, 0 where it is right; no GPU
"""

import sys
import tempfile

import torch
import transformers

torch.manual_seed(0)
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
config = transformers.LlavaConfig(
    vision_config=transformers.CLIPVisionConfig(**SMALL, image_size=28, patch_size=14),
    text_config=transformers.LlamaConfig(
        **SMALL, num_key_value_heads=2, vocab_size=64, initializer_range=1.0
    ),
)
model = transformers.LlavaForConditionalGeneration(config)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(3, 60, (8, 12))]


def loss_of(smoothing: float) -> float:
    """The loss of these rows as the Trainer evaluates them."""
    with tempfile.TemporaryDirectory() as place:
        args = transformers.TrainingArguments(
            place, label_smoothing_factor=smoothing, use_cpu=True, report_to="none", disable_tqdm=True
        )
        return transformers.Trainer(model, args, eval_dataset=rows).evaluate()["eval_loss"]


plain, smoothed = loss_of(0.0), loss_of(1e-6)
print(f"transformers {transformers.__version__}, torch {torch.__version__}")
print(f"loss: {plain:.2f}, smoothed by 0.000001: {smoothed:.2f}")
sys.exit(abs(plain - smoothed) > 0.01)
