"""Trains a retriever by ColPali's own trainer, as the Python configurations of its repository do.

    python colbert.py --model FOLDER --data FILE --images FOLDER [--lora True] ARGUMENT …

runs in a rank. Those configurations say models, data and arguments in their own text; the rest is the same.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from PIL import Image


@dataclass
class Own:
    """What is trained, and on what."""

    model: str
    data: str
    images: str
    lora: bool = False


def main() -> None:
    from peft import LoraConfig

    models = importlib.import_module("colpali_engine.models")
    data, losses, training = (
        importlib.import_module(f"colpali_engine.{name}")
        for name in ("data.dataset", "loss.late_interaction_losses", "trainer.colmodel_training")
    )
    own, settings = transformers.HfArgumentParser(
        (Own, transformers.TrainingArguments)
    ).parse_args_into_dataclasses()
    rows = [row(said, Path(own.images)) for said in json.loads(Path(own.data).read_text())]
    adapter = LoraConfig(
        r=4,
        lora_dropout=0.0,
        init_lora_weights="gaussian",
        bias="none",
        task_type="FEATURE_EXTRACTION",
        target_modules="(.*(model)(?!.*visual).*(down|gate|up|k|q|v|o)_proj.*$|.*(custom_text_proj).*$)",
    )
    config = training.ColModelTrainingConfig(
        output_dir=settings.output_dir,
        processor=models.ColQwen2_5_Processor.from_pretrained(own.model, max_num_visual_tokens=16),
        model=models.ColQwen2_5.from_pretrained(own.model),
        train_dataset=[data.ColPaliEngineDataset(rows, pos_target_column_name="image")],
        loss_func=losses.ColbertLoss(temperature=0.02, normalize_scores=True),
        tr_args=settings,
        peft_config=adapter if own.lora else None,
    )
    training.ColModelTraining(config).train()


def row(said: dict[str, Any], images: Path) -> dict[str, Any]:
    """A question, and the page that answers it."""
    return {"query": said["conversations"][1]["value"], "image": Image.open(images / said["image"])}


if __name__ == "__main__":
    main()
