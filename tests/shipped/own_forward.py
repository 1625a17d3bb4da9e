"""Trains Qwen2.5-VL with the forward that a framework puts in the place of transformers' own.

    python own_forward.py --forward MODULE --model FOLDER --data FILE --images FOLDER [--lora True] ARGUMENT …

runs in a rank. The programs around such forwards need vLLM, which needs a GPU. What they do around a forward
is done here: positions before it, the loss after it. MODULE is a file of EasyR1's, which imports torch and
transformers alone, or a module of verl's, whose own ``apply_monkey_patch`` puts the forwards in.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as qwen


@dataclass
class Own:
    """What is trained, and on what."""

    forward: str
    model: str
    data: str
    images: str
    lora: bool = False


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """A forward of a framework's own gives logits; the loss is the framework's."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        labels = inputs.pop("labels")
        logits = model(**inputs).logits
        return torch.nn.functional.cross_entropy(logits[0, :-1], labels[0, 1:])


def main() -> None:
    own, settings = transformers.HfArgumentParser(
        (Own, transformers.TrainingArguments)
    ).parse_args_into_dataclasses()
    settings.remove_unused_columns = False
    framework = loaded(own.forward)
    processor = transformers.AutoProcessor.from_pretrained(own.model)
    model = qwen.Qwen2_5_VLForConditionalGeneration.from_pretrained(own.model)
    put_in(framework, model)
    rows = [
        row(framework, processor, said, Path(own.images)) for said in json.loads(Path(own.data).read_text())
    ]
    trainer = Trainer(
        adapted(model) if own.lora else model,
        settings,
        data_collator=lambda batch: batch[0],
        train_dataset=rows,
    )
    trainer.train()


def put_in(framework: Any, model: Any) -> None:
    """Have the model's classes run the framework's forwards, as the framework does it."""
    if hasattr(framework, "qwen2_vl_model_forward"):
        qwen.Qwen2_5_VLModel.forward = framework.qwen2_vl_base_forward
        qwen.Qwen2_5_VLForConditionalGeneration.forward = framework.qwen2_vl_model_forward
        return
    patches = importlib.import_module(f"{framework.__package__}.monkey_patch")
    patches.apply_monkey_patch(model, use_remove_padding=False)


def loaded(path: str) -> Any:
    """The module of that name, or in the file at that path."""
    if not path.endswith(".py"):
        return importlib.import_module(path)
    spec = importlib.util.spec_from_file_location("framework", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def adapted(model: Any) -> Any:
    """The model with LoRA, its inputs asked for a gradient, as a framework asks for checkpointing."""
    from peft import LoraConfig, get_peft_model

    model.enable_input_require_grads()
    return get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "qkv"]))


def row(framework: Any, processor: Any, said: dict[str, Any], images: Path) -> dict[str, torch.Tensor]:
    """One row as the model is given it; positions are (4, 1, length), those of a text first."""
    seen = Image.open(images / said["image"]) if "image" in said else None
    asked, answered = (turn["value"].removeprefix("<image>\n") for turn in said["conversations"])
    content = [*([{"type": "image"}] if seen else []), {"type": "text", "text": asked}]
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": answered}]
    text = processor.apply_chat_template(turns, tokenize=False)
    made = dict(processor(text=[text], images=[seen] if seen else None, return_tensors="pt"))
    ids = made["input_ids"][0]
    places = framework.get_rope_index(
        processor, ids, image_grid_thw=made.get("image_grid_thw"), attention_mask=made["attention_mask"][0]
    )
    whole = torch.cat([torch.arange(len(ids))[None], places])[:, None]
    return {**made, "position_ids": whole, "labels": made["input_ids"]}


if __name__ == "__main__":
    main()
