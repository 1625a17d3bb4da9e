"""DeLoRA, LoHa and LN tuning are made of weights that ZeRO-3 holds empty.

python reproduce.py      # 1 where an adapter is made of nothing, 0 where none is; one process, no GPU
"""

import os
import sys

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import peft
import transformers
from torch import distributed
from transformers import BertConfig, BertModel
from transformers.integrations import HfDeepSpeedConfig

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
config = BertConfig(vocab_size=512, **sizes)
print(f"peft {peft.__version__}, transformers {transformers.__version__}, deepspeed {deepspeed.__version__}")
told = HfDeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}})
of_nothing = []


def say(name, tensors):
    shapes = sorted({tuple(tensor.shape) for tensor in tensors})
    print(f"{name}: {shapes}")
    of_nothing.append(() in shapes or (0,) in shapes)


tuned = peft.get_peft_model(BertModel._from_config(config), peft.DeloraConfig(target_modules=["query"]))
say("DeLoRA's norms of the weights", [b for n, b in tuned.named_buffers() if "delora_w_norm" in n])
try:
    tuned = peft.get_peft_model(BertModel._from_config(config), peft.LoHaConfig(target_modules=["query"]))
    say("LoHa's weights", [p for n, p in tuned.named_parameters() if "hada_w1_b" in n])
except IndexError as error:
    print(f"LoHa: IndexError: {error}")
    of_nothing.append(True)
tuned = peft.get_peft_model(BertModel._from_config(config), peft.LNTuningConfig(target_modules=["LayerNorm"]))
say("LN tuning's copies", [p for n, p in tuned.named_parameters() if "ln_tuning_layers" in n])
distributed.destroy_process_group()
sys.exit(any(of_nothing))
