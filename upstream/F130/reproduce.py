"""HF Trainer with a mixture of experts: the loss of routers is multiplied by accumulation.

python reproduce.py      # 1 where four batches of a row each have another loss than one of four rows; no GPU
"""

import sys
import tempfile

import torch
import transformers


def logged(batch: int, steps: int) -> float:
    """Loss of a step over the same row four times."""
    transformers.set_seed(0)
    config = transformers.Qwen3MoeConfig(
        hidden_size=16,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        vocab_size=64,
        output_router_logits=True,
        router_aux_loss_coef=1.0,
    )
    row = torch.randint(3, 60, (12,))
    rows = [{"input_ids": row, "labels": torch.cat([torch.tensor([-100]), row[1:]])} for _ in range(4)]
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
        trainer = transformers.Trainer(transformers.Qwen3MoeForCausalLM(config), settings, train_dataset=rows)
        trainer.train()
    return trainer.state.log_history[0]["loss"]


whole, accumulated = logged(4, 1), logged(1, 4)
print(f"transformers {transformers.__version__}")
print(f"loss of a batch of four rows: {whole:.3f}, of four accumulated batches: {accumulated:.3f}")
sys.exit(abs(whole - accumulated) > 0.01)
