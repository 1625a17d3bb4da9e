"""Rows of Mllama with different numbers of images: whether each has the loss that it has by itself.

python reproduce.py      # 1 where a batch changes a row's loss, 0 where not; no GPU
"""

import sys

import torch
import transformers

IMAGE, LENGTH = 127, 12
vision = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "attention_heads": 4,
    "num_global_layers": 1,
    "vision_output_dim": 64,
    "max_num_tiles": 1,
    "image_size": 28,
    "patch_size": 14,
    "intermediate_layers_indices": [0],
    "supported_aspect_ratios": [[1, 1]],
}
text = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "pad_token_id": 0,
    "cross_attention_layers": [1],
    "rope_scaling": {"rope_type": "default"},
}
torch.manual_seed(0)
model = transformers.MllamaForConditionalGeneration(
    transformers.MllamaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE)
)
with torch.no_grad():
    for parameter in model.parameters():
        if not parameter.any():  # gates, closed in a new model
            parameter.fill_(1.0)
    model.lm_head.weight.mul_(20)


def row(images, of):
    """One text, with as many images of `of`; the rest is filled up with zeros, as the processor does it."""
    ids = torch.randint(10, 100, (1, LENGTH), generator=torch.Generator().manual_seed(images))
    pixels = torch.zeros(1, of, 1, 3, 28, 28)
    aspects = torch.zeros(1, of, dtype=torch.long)
    looks = torch.zeros(1, LENGTH, of, 1, dtype=torch.long)
    for number in range(images):
        begin = 4 * (number + 1)
        ids[:, begin] = IMAGE
        pixels[:, number] = torch.randn(3, 28, 28, generator=torch.Generator().manual_seed(number))
        aspects[:, number] = 1
        looks[:, begin : LENGTH if number == images - 1 else begin + 4, number] = 1
    return {
        "input_ids": ids,
        "pixel_values": pixels,
        "aspect_ratio_ids": aspects,
        "aspect_ratio_mask": torch.ones(1, of, 1, dtype=torch.long),
        "cross_attention_mask": looks,
    }


@torch.no_grad()
def losses(batch):
    next_ids = batch["input_ids"][:, 1:4]  # of the tokens before any image
    chances = model(**batch).logits[:, :3].log_softmax(-1)
    return (-chances.gather(-1, next_ids[..., None])).mean((1, 2)).tolist()


batch = {name: torch.cat([row(2, 2)[name], row(1, 2)[name]]) for name in row(2, 2)}
alone, beside = losses(row(1, 1))[0], losses(batch)[1]
print(f"transformers {transformers.__version__}")
said = f"loss {alone:.4f} by itself, {beside:.4f} beside one with two"
print(f"a row with one image, before that image: {said}")
sys.exit(abs(alone - beside) > 1e-5)
