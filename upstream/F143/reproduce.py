"""Flash attention with positions along three axes: whether one row is taken for packed rows.

python reproduce.py      # 1 where boundaries lie beyond the end of the batch, 0 where not; no GPU
"""

import sys

import torch
import transformers
from transformers import modeling_flash_attention_utils as flash

positions = torch.arange(7).expand(3, 1, 7)  # as GLM-4.5V's layers get them
print(f"transformers {transformers.__version__}")
said = f"one row of seven tokens, positions of shape {[*positions.shape]}"
if not flash._is_packed_sequence(positions, batch_size=1):
    print(f"{said}: no packed rows")
    sys.exit(0)
(ends, _), _ = flash.prepare_fa_kwargs_from_position_ids(positions)
print(f"{said}: packed rows, with boundaries {ends.tolist()}")
sys.exit(1)
