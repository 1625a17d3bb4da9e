"""Positions of packed texts leave a mask that is longer than its row, where the row has no image.

python reproduce.py      # 1 where the mask is longer, 0 where it is as long; no GPU, no download
"""

import sys
import types

import torch
from llamafactory.data.collator import SFTDataCollatorWith4DAttentionMask, prepare_4d_attention_mask

TEXTS, FILL, BLANK = (5, 4), 3, 4  # tokens: of two packed texts, behind them, and of the blank image


def positions(input_ids, image_grid_thw=None, video_grid_thw=None, attention_mask=None):
    """As a model's get_rope_index."""
    rows, length = input_ids.shape
    return torch.arange(length).expand(3, rows, length), torch.zeros(rows, 1)


collator = object.__new__(SFTDataCollatorWith4DAttentionMask)
collator.get_rope_func = positions
collator.tokenizer = types.SimpleNamespace(padding_side="right")
collator.model = types.SimpleNamespace(config=types.SimpleNamespace(model_type="qwen2_vl"))
owner = [number + 1 for number, length in enumerate(TEXTS) for _ in range(length)]
features = {
    "input_ids": torch.ones(1, sum(TEXTS) + FILL + BLANK, dtype=torch.long),
    "attention_mask": torch.tensor([owner + [0] * (FILL + BLANK)]),
}
packed = {
    "sequence_boundaries": [0, TEXTS[0], sum(TEXTS), sum(TEXTS) + FILL],
    "image_subseq_ids": [],
    "video_subseq_ids": [],
    "right_padding_length": FILL,
}
collator._compute_rope_position_ids_with_packing(features, {}, [packed], [1], [0], [0], True)
length = features["input_ids"].shape[1]
mask = prepare_4d_attention_mask(features["attention_mask"], torch.float32)
print(f"row {length}, positions {features['position_ids'].shape[-1]}, mask {tuple(mask.shape)}")
sys.exit(mask.shape[-1] != length)
