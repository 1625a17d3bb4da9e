"""A Trainer that trains a second time under DeepSpeed has no engine.

    python reproduce.py      # 1 where it has none, 0 where it trains; one process, no GPU

The first ``train()`` works, the next of the same Trainer ends in its first backward.
"""

import os
import sys
import tempfile

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29617"}

import accelerate
import torch
import transformers
from torch import distributed

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 32}
config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
model = transformers.LlamaForCausalLM(config)
rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(4)]
deepspeed = {
    "train_micro_batch_size_per_gpu": "auto",
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
}
said = "nothing"
with tempfile.TemporaryDirectory() as folder:
    settings = {"max_steps": 1, "per_device_train_batch_size": 1, "optim": "sgd", "report_to": []}
    arguments = transformers.TrainingArguments(folder, **settings, disable_tqdm=True, deepspeed=deepspeed)
    trainer = transformers.Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    try:
        trainer.train()
    except AttributeError as error:
        said = f"{type(error).__name__}: {error}"
print(f"transformers {transformers.__version__}, accelerate {accelerate.__version__}\nerror: {said}")
distributed.destroy_process_group()
sys.exit(said != "nothing")
