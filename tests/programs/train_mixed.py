"""An ordinary full fine-tune by HF Trainer on samples with and without images; nothing in it knows vlmpatch.

``--engine plain`` is what is right: the same samples in one process, two a step, no Trainer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

if "--import-vlmpatch" in sys.argv:
    import vlmpatch  # noqa: F401

import torch
import transformers
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainingArguments, set_seed

LR = 0.05
STEPS = 4
SAMPLES = 2 * STEPS
IGNORED = -100


class InOrder(Trainer):  # type: ignore[misc]
    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        return SequentialSampler(self.train_dataset)


def samples(folder: Path) -> list[dict[str, torch.Tensor]]:
    """Every third has no image: no rank has one in every step, and one step has two."""
    ready = torch.load(folder / "batches.pt")
    rows = [without_image(row) if n % 3 == 1 else row for n, row in enumerate(ready[:SAMPLES])]
    for row in rows:
        row["labels"][:, 0] = IGNORED  # no loss has it, and the Trainer would count it
    return rows


def without_image(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    shape, counted = batch["input_ids"].shape, batch["labels"][0] != IGNORED
    return {name: value[:, counted] for name, value in batch.items() if value.shape == shape}


def deepspeed_config(stage: int, kept: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "SGD", "params": {"lr": LR}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": kept},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.0,
    }


def plainly(model: Any, rows: list[dict[str, torch.Tensor]]) -> None:
    model.train()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=LR)
    for step in range(STEPS):
        for row in rows[2 * step : 2 * step + 2]:
            (model(**row).loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def whole(parameter: Any) -> torch.Tensor:
    if hasattr(parameter, "ds_id"):
        from deepspeed.utils import safe_get_full_fp32_param

        parameter = safe_get_full_fp32_param(parameter)
    value: torch.Tensor = parameter.detach().float().clone()
    return value


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--engine", choices=["plain", "ddp", "zero2", "zero3"], required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--evaluate", action="store_true", help="after every step, on the same samples")
    parser.add_argument(
        "--kept", type=int, default=0, help="the size up to which ZeRO-3 keeps a tensor whole"
    )
    parser.add_argument("--import-vlmpatch", action="store_true")
    asked = parser.parse_args()
    set_seed(0)
    stage = {"zero2": 2, "zero3": 3}.get(asked.engine)
    rows = samples(asked.model)
    config = transformers.AutoConfig.from_pretrained(asked.model)
    known = getattr(transformers, config.architectures[0])
    if asked.engine == "plain":
        model = known.from_pretrained(asked.model)
        model.config.use_cache = False
        plainly(model, rows)
    else:
        arguments = TrainingArguments(
            output_dir=str(asked.out.parent / "trainer"),
            per_device_train_batch_size=1,
            max_steps=STEPS,
            learning_rate=LR,
            lr_scheduler_type="constant",
            optim="sgd",
            max_grad_norm=0.0,
            gradient_checkpointing=True,
            average_tokens_across_devices=False,
            save_strategy="no",
            eval_strategy="steps" if asked.evaluate else "no",
            eval_steps=1,
            per_device_eval_batch_size=1,
            prediction_loss_only=True,
            report_to=[],
            use_cpu=stage is None,
            ddp_backend="gloo",
            remove_unused_columns=False,
            deepspeed=deepspeed_config(stage, asked.kept) if stage else None,
        )
        model = known.from_pretrained(asked.model)
        model.config.use_cache = False
        trainer = InOrder(
            model=model,
            args=arguments,
            train_dataset=rows,
            eval_dataset=rows,
            data_collator=lambda rows: dict(rows[0]),
        )
        trainer.train()
        model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    found = {name: whole(parameter) for name, parameter in model.named_parameters()}
    if asked.engine == "plain" or torch.distributed.get_rank() == 0:
        torch.save(found, asked.out)


if __name__ == "__main__":
    main()
