"""HF Trainer with a head that classifies rows: the loss is multiplied by accumulation.

python reproduce.py      # 1 where four batches of a row each have another loss than one of four rows; no GPU
"""

import sys
import tempfile

import torch
import transformers


def logged(batch: int, steps: int) -> float:
    """Loss of a step over the same row four times."""
    transformers.set_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=64,
        num_labels=3,
        pad_token_id=0,
    )
    row = torch.randint(3, 60, (12,))
    rows = [{"input_ids": row, "labels": 1} for _ in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=steps,
            max_steps=1,
            logging_steps=1,
            learning_rate=0.0,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
        )
        model = transformers.LlamaForSequenceClassification(config)
        trainer = transformers.Trainer(model, settings, train_dataset=rows)
        trainer.train()
    return trainer.state.log_history[0]["loss"]


whole, accumulated = logged(4, 1), logged(1, 4)
print(f"transformers {transformers.__version__}")
print(f"loss of a batch of four rows: {whole:.3f}, of four accumulated batches: {accumulated:.3f}")
sys.exit(abs(whole - accumulated) > 0.01)
