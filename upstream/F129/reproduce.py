"""Label smoothing in ms-swift: the loss of two accumulated batches is twice that of one.

python reproduce.py      # 1 where two batches add up to twice their mean, 0 where it is right; no GPU
"""

import sys
from types import SimpleNamespace

import swift
import torch
import transformers
from swift.trainers import Seq2SeqTrainer
from transformers.trainer_pt_utils import LabelSmoother

torch.manual_seed(0)
config = transformers.LlamaConfig(
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    vocab_size=64,
)
model = transformers.LlamaForCausalLM(config).train()
model.model_info = SimpleNamespace(is_moe_model=False)
rows = torch.randint(3, 60, (2, 12))
labels = torch.cat([torch.full((2, 1), -100), rows[:, 1:]], dim=1)

trainer = Seq2SeqTrainer.__new__(Seq2SeqTrainer)  # as much of one as computes a loss
trainer.model, trainer.model_accepts_loss_kwargs = model, True
trainer.label_smoother, trainer.compute_loss_func = LabelSmoother(epsilon=1e-6), None
trainer.accelerator = SimpleNamespace(unwrap_model=lambda model: model, num_processes=1)
trainer.template = SimpleNamespace(
    sequence_parallel_size=1,
    padding_free=False,
    compute_sft_loss=lambda model, inputs, **more: model(**inputs),
)
trainer.args = SimpleNamespace(
    gradient_accumulation_steps=2,
    average_tokens_across_devices=True,
    world_size=1,
    enable_dft_loss=False,
    enable_channel_loss=False,
    use_liger_kernel=False,
    tuner_backend="peft",
    router_aux_loss_coef=None,
    acc_strategy="token",
)
trainer._compute_acc = lambda *args, **more: None

mean = model(input_ids=rows, labels=labels).loss.item()
count = (labels[:, 1:] != -100).sum()
batches = [{"input_ids": rows[n : n + 1], "labels": labels[n : n + 1]} for n in range(2)]
smoothed = sum(trainer.compute_loss(model, batch, num_items_in_batch=count).item() for batch in batches)
print(f"ms-swift {swift.__version__}, transformers {transformers.__version__}")
print(f"loss: {mean:.2f}, of two accumulated batches, smoothed by 0.000001: {smoothed:.2f}")
sys.exit(abs(mean - smoothed) > 0.01)
