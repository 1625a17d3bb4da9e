"""A model made inside a script's own ``deepspeed.zero.Init`` is initialised while its weights are empty.

python reproduce.py      # 1 where it fails, or is initialised wrongly; 0 where right; one process, no GPU
"""

import os
import sys

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import transformers
from torch import distributed
from transformers import BertConfig, BertModel

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
config = BertConfig(vocab_size=512, initializer_range=1e-4, **sizes)
print(f"transformers {transformers.__version__}, deepspeed {deepspeed.__version__}")
try:
    with deepspeed.zero.Init():
        model = BertModel(config)
except IndexError as error:
    print(f"IndexError: {error}")
    sys.exit(1)
weight = model.encoder.layer[0].attention.self.query.weight
with deepspeed.zero.GatheredParameters(weight):
    off = float(weight.std() / 1e-4 - 1)
print(f"the deviation of a weight is {off:+.0%} off initializer_range")
distributed.destroy_process_group()
sys.exit(abs(off) > 0.1)
