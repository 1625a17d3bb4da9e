"""What the programs of this folder train: a model of one layer, transformers' Trainer on a CPU."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import PrinterCallback, TrainingArguments


class Tiny(torch.nn.Module):  # type: ignore[misc]
    scale = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x: Any, labels: Any = None) -> Any:
        logits = self.layer(x)
        loss = None if labels is None else (logits - labels).pow(2).mean()
        return {"loss": loss, "logits": logits}

    def aux(self) -> Any:
        return self.layer.weight.pow(2).sum() * 0.01


def model() -> Tiny:
    torch.manual_seed(0)
    return Tiny()


def data(count: int = 8) -> Any:
    generator = torch.Generator().manual_seed(1)
    return [
        {"x": torch.randn(4, generator=generator), "labels": torch.randn(3, generator=generator)}
        for _ in range(count)
    ]


def trainer_of(cls: Any, net: Any, callbacks: Any = None, **arguments: Any) -> Any:
    cpu = "use_cpu" if "use_cpu" in inspect.signature(TrainingArguments).parameters else "no_cuda"
    arguments.setdefault("save_strategy", "no")
    args = TrainingArguments(
        output_dir="out",
        max_steps=3,
        per_device_train_batch_size=2,
        report_to=[],
        disable_tqdm=True,
        seed=3,
        **{cpu: True},
        **arguments,
    )
    trainer = cls(model=net, args=args, train_dataset=data(), callbacks=callbacks)
    trainer.remove_callback(PrinterCallback)  # prints how long things took
    return trainer


def train(cls: Any, net: Any, **options: Any) -> None:
    trainer = trainer_of(cls, net, **options)
    trainer.train()
    for name, value in net.named_parameters():
        print(name, [round(x, 5) for x in value.detach().flatten().tolist()])
