"""Under ZeRO-3 ``resize_token_embeddings`` sets frozen embeddings free.

python reproduce.py      # 1 where it does, 0 where they stay frozen; one process, no GPU
"""

import os
import sys

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import transformers
from torch import distributed
from transformers import BertConfig, BertModel
from transformers.integrations import HfDeepSpeedConfig

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
config = BertConfig(vocab_size=512, **sizes)
print(f"transformers {transformers.__version__}, deepspeed {deepspeed.__version__}")
trained = {}
for stage in (2, 3):
    told = HfDeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}})
    model = BertModel._from_config(config).requires_grad_(False)
    model.resize_token_embeddings(520)
    trained[stage] = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    del told
print(f"trained after a resize of a frozen model: ZeRO-2 {trained[2]}, ZeRO-3 {trained[3]}")
distributed.destroy_process_group()
sys.exit(trained[2] != trained[3])
