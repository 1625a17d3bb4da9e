"""A fine-tune of a model whose decoder blocks look at the same encoder states: HF Trainer, full tuning.

Whisper, or Llama-3.2-Vision's class, made tiny. ``--import-vlmpatch`` stands for a user's first line. Each
step's gradients, as DDP reduced them, go to ``--save``; ``--measure`` holds those of this run against them.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

if "--import-vlmpatch" in sys.argv:
    import vlmpatch  # noqa: F401

import torch
from transformers import (
    MllamaConfig,
    MllamaForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    WhisperConfig,
    WhisperForConditionalGeneration,
    set_seed,
)

IMAGE = 120
Batch = dict[str, torch.Tensor]


def whisper() -> tuple[Any, list[Batch]]:
    """Whisper and eight sounds."""
    size = {"d_model": 32, "num_mel_bins": 16, "max_source_positions": 16, "max_target_positions": 32}
    layers = {f"{part}_layers": 2 for part in ("encoder", "decoder")}
    heads = {f"{part}_attention_heads": 4 for part in ("encoder", "decoder")}
    widths = {f"{part}_ffn_dim": 64 for part in ("encoder", "decoder")}
    tokens = {"vocab_size": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    begin = {"decoder_start_token_id": 1, "suppress_tokens": [], "begin_suppress_tokens": []}
    model = WhisperForConditionalGeneration(
        WhisperConfig(**size, **layers, **heads, **widths, **tokens, **begin)
    )
    rows = [
        {"input_features": torch.randn(1, 16, 32), "labels": torch.randint(10, 100, (1, 6 + number % 3))}
        for number in range(8)
    ]
    return model, rows


def mllama() -> tuple[Any, list[Batch]]:
    """Llama-3.2-Vision with two layers that look at the image, and eight images."""
    vision: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    vision |= {"attention_heads": 4, "num_global_layers": 1, "vision_output_dim": 64, "max_num_tiles": 2}
    vision |= {"image_size": 28, "patch_size": 14, "intermediate_layers_indices": [0]}
    vision |= {"supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]]}
    text: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128, "pad_token_id": 0}
    text |= {"cross_attention_layers": [1, 3], "rope_scaling": {"rope_type": "default"}}
    config = MllamaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE)
    model = MllamaForConditionalGeneration(config)
    for parameter in model.parameters():
        if not parameter.any():  # gates that start at zero would hide the gradients behind them
            torch.nn.init.normal_(parameter, std=0.02)
    return model, [_seen(number) for number in range(8)]


def _seen(number: int) -> Batch:
    ids = torch.cat([torch.full((1, 1), IMAGE), torch.randint(10, 100, (1, 8 + number % 3))], dim=1)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": ids.masked_fill(ids == IMAGE, -100),
        "pixel_values": torch.randn(1, 1, 2, 3, 28, 28),
        "aspect_ratio_ids": torch.tensor([[2]]),
        "aspect_ratio_mask": torch.tensor([[[1, 1]]]),
    }


MODELS = {"whisper": whisper, "mllama": mllama}


class Recorded(TrainerCallback):  # type: ignore[misc]
    """Keeps the gradients of every step."""

    def __init__(self) -> None:
        self.steps: list[Batch] = []

    def on_pre_optimizer_step(self, *args: Any, model: Any, **kwargs: Any) -> None:
        named = model.named_parameters()
        self.steps.append({name: p.grad.clone() for name, p in named if p.grad is not None})


def apart(got: list[Batch], right: list[Batch]) -> float:
    """The largest difference of any gradient of any step, relative to the largest value of that gradient."""
    assert [step.keys() for step in got] == [step.keys() for step in right], "other parameters have gradients"
    pairs = [(one[name], two[name]) for one, two in zip(got, right, strict=True) for name in one]
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-12)) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=[*MODELS], required=True)
    parser.add_argument("--output_dir", default="/tmp/vlmpatch-cross-attention")
    parser.add_argument("--import-vlmpatch", action="store_true")
    parser.add_argument("--no-checkpointing", action="store_true", help="what the gradients should be")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--measure", type=Path)
    asked = parser.parse_args()

    arguments = TrainingArguments(
        output_dir=asked.output_dir,
        per_device_train_batch_size=1,
        max_steps=3,
        learning_rate=1e-3,
        gradient_checkpointing=not asked.no_checkpointing,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        remove_unused_columns=False,
    )
    set_seed(0)
    model, rows = MODELS[asked.model]()
    recorded = Recorded()
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        data_collator=lambda rows: rows[0],
        callbacks=[recorded],
    )
    trainer.train()
    if asked.save and trainer.is_world_process_zero():
        torch.save(recorded.steps, asked.save)
    if asked.measure and trainer.is_world_process_zero():
        print(f"apart {apart(recorded.steps, torch.load(asked.measure)):.2g}")


if __name__ == "__main__":
    main()
