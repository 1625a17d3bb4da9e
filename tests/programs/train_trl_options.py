"""A script of TRL's, whatever the trainer: it is told which, the options of it, an adapter and an engine.

Rows are taken as they come; of ``--rows mixed`` every third has no image, ``--rows text`` have none.
"""

import argparse
import functools
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import peft
import transformers
import trl
from transformers import AutoProcessor, AutoTokenizer, set_seed

from tests.families._shared.sizes import TEXT
from tests.lab import trainers

EVERYWHERE = r".*(q_proj|k_proj|v_proj|o_proj|qkv|fc1|fc2)"
COMMON = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 2,
    "max_steps": 3,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "bf16": False,
    "remove_unused_columns": False,
    "optim": "adamw_torch",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer", choices=sorted(TRAINERS))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--engine", default="ddp")
    parser.add_argument("--rows", default="mixed")
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--adapter", type=json.loads)
    asked = parser.parse_args()
    settings = COMMON | trainers.place_of(asked.engine) | {"output_dir": asked.output_dir} | asked.options
    TRAINERS[asked.trainer](asked, settings)


def adapter_of(asked: argparse.Namespace) -> dict[str, Any]:
    if asked.adapter is None:
        return {}
    said = {"r": 4, "target_modules": EVERYWHERE, **asked.adapter}
    return {"peft_config": getattr(peft, said.pop("kind", "LoraConfig"))(**said)}


def rows_of(asked: argparse.Namespace, rlhf: bool = False) -> list[dict[str, Any]]:
    rows = trainers.rows(asked.model, "dpo" if rlhf else "sft")
    bare = {"mixed": rows[1::3], "text": rows}.get(asked.rows, [])
    for row in bare:
        row["images"] = []
    return rows


def model_of(asked: argparse.Namespace) -> Any:
    """Loaded once the trainer's settings are there: under ZeRO-3 in parts."""
    config = transformers.AutoConfig.from_pretrained(asked.model)
    return getattr(transformers, config.architectures[0]).from_pretrained(asked.model)


def turns(role: str, text: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text}]


def shown(row: dict[str, Any], text: str, role: str = "user") -> list[dict[str, Any]]:
    """A turn whose content comes in parts, as the chat template of a vision-language model wants it."""
    images = [{"type": "image", "text": None} for _ in row["images"]]
    return [{"role": role, "content": [*images, {"type": "text", "text": text}]}]


def text_model() -> Any:
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**{**TEXT, "vocab_size": 1024}))


def answer(row: dict[str, Any]) -> str:
    return str(row["messages"][1]["content"])


def dataset(rows: list[dict[str, Any]], images: bool) -> Any:
    made = datasets.Dataset.from_list(rows)
    return made.cast_column("images", datasets.Sequence(datasets.Image())) if images else made


def processor_of(asked: argparse.Namespace) -> Any:
    kind = AutoTokenizer if asked.rows == "text" else AutoProcessor
    return kind.from_pretrained(asked.model, padding_side="left")


def with_images(asked: argparse.Namespace, rows: list[dict[str, Any]], made: list[dict[str, Any]]) -> Any:
    if asked.rows == "text":
        return dataset(made, False)
    return dataset([m | {"images": row["images"]} for m, row in zip(made, rows, strict=True)], True)


def sft(asked: argparse.Namespace, settings: dict[str, Any]) -> None:
    rows = rows_of(asked)
    made = [
        {"prompt": turns("user", "describe the image"), "completion": turns("assistant", answer(row))}
        for row in rows
    ]
    arguments = trl.SFTConfig(**({"max_length": None} | settings))
    set_seed(0)
    trl.SFTTrainer(
        model=model_of(asked),
        args=arguments,
        train_dataset=with_images(asked, rows, made),
        processing_class=processor_of(asked),
        **adapter_of(asked),
    ).train()


def dpo(asked: argparse.Namespace, settings: dict[str, Any]) -> None:
    rows = rows_of(asked, rlhf=True)
    made = [
        {
            "prompt": shown(row, "describe the image"),
            "chosen": shown({"images": []}, answer(row), "assistant"),
            "rejected": shown({"images": []}, row["rejected_response"], "assistant"),
        }
        for row in rows
    ]
    arguments = trl.DPOConfig(**settings)
    set_seed(0)
    trl.DPOTrainer(
        model=text_model() if asked.rows == "text" else model_of(asked),
        args=arguments,
        train_dataset=with_images(asked, rows, made),
        processing_class=processor_of(asked),
        **adapter_of(asked),
    ).train()


def pairs(asked: argparse.Namespace, settings: dict[str, Any], name: str) -> None:
    """Trainers that know no images: those of pairs of answers, and KTO's of single ones."""
    rows = trainers.rows(asked.model, "dpo")
    made: list[dict[str, Any]] = [
        {"prompt": "describe the image", "chosen": answer(row), "rejected": row["rejected_response"]}
        for row in rows
    ]
    if name == "KTO":
        settings = {**settings, "per_device_train_batch_size": 2}
        made = [
            {"prompt": row["prompt"], "completion": row["chosen"], "label": number % 2 == 0}
            for number, row in enumerate(made)
        ]
    own = hasattr(trl, f"{name}Config")
    home = trl if own else importlib.import_module(f"trl.experimental.{name.lower()}")
    arguments = getattr(home, f"{name}Config")(**settings)
    set_seed(0)
    getattr(home, f"{name}Trainer")(
        model=model_of(asked),
        args=arguments,
        train_dataset=dataset(made, False),
        processing_class=AutoTokenizer.from_pretrained(asked.model),
        **adapter_of(asked),
    ).train()


def reward(asked: argparse.Namespace, settings: dict[str, Any]) -> None:
    rows = trainers.rows(asked.model, "dpo")
    made = [
        {
            "chosen": turns("user", "describe") + turns("assistant", answer(row)),
            "rejected": turns("user", "describe") + turns("assistant", row["rejected_response"]),
        }
        for row in rows
    ]
    arguments = trl.RewardConfig(**settings)
    set_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(asked.model)
    sizes = {**TEXT, "vocab_size": 1024, "num_labels": 1, "pad_token_id": tokenizer.pad_token_id}
    trl.RewardTrainer(
        model=transformers.Qwen2ForSequenceClassification(transformers.Qwen2Config(**sizes)),
        args=arguments,
        train_dataset=dataset(made, False),
        processing_class=tokenizer,
        **adapter_of(asked),
    ).train()


def online(asked: argparse.Namespace, settings: dict[str, Any], name: str) -> None:
    rows = rows_of(asked)
    made = [{"prompt": turns("user", "describe the image")} for _ in rows]
    processor = processor_of(asked)
    tokenizer = getattr(processor, "tokenizer", processor)
    own = {
        "per_device_train_batch_size": 2,
        "num_generations": 2,
        "max_completion_length": 8,
        "generation_kwargs": {"suppress_tokens": tokenizer.all_special_ids},
    }
    arguments = getattr(trl, f"{name}Config")(**(settings | own | asked.options))

    def worth(completion_ids: list[list[int]], **columns: Any) -> list[float]:
        return [sum(ids) % 97 / 97 for ids in completion_ids]

    set_seed(0)
    getattr(trl, f"{name}Trainer")(
        model=model_of(asked),
        reward_funcs=worth,
        args=arguments,
        train_dataset=with_images(asked, rows, made),
        processing_class=processor,
        **adapter_of(asked),
    ).train()


TRAINERS: dict[str, Callable[[argparse.Namespace, dict[str, Any]], None]] = {
    "sft": sft,
    "dpo": dpo,
    "kto": functools.partial(pairs, name="KTO"),
    "orpo": functools.partial(pairs, name="ORPO"),
    "cpo": functools.partial(pairs, name="CPO"),
    "reward": reward,
    "grpo": functools.partial(online, name="GRPO"),
    "rloo": functools.partial(online, name="RLOO"),
}

if __name__ == "__main__":
    main()
