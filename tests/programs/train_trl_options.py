"""A script of TRL's, whatever the trainer: it is told which, the options of it, an adapter and an engine.

Rows are taken as they come; of ``--rows mixed`` every third has no image, ``--rows text`` have none.
"""

import argparse
import functools
import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import peft
import transformers
import trl
from transformers import AutoProcessor, AutoTokenizer, set_seed

from tests.families._shared.sizes import TEXT
from tests.lab import trainers
from vlmpatch_lab import loading

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
GENERATED = {"per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 8}
OWN: dict[str, dict[str, Any]] = {  # of a trainer
    "sft": {"max_length": None},
    "kto": {"per_device_train_batch_size": 2},
    "grpo": GENERATED,
    "rloo": GENERATED,
}


@dataclass(frozen=True)
class Asked:
    """Of what a trainer is made, but for its arguments."""

    model: Path
    rows: str = "mixed"  # or text, whose tokenizer no processor is around, or images
    adapter: dict[str, Any] | None = None
    wrapped: bool = False  # whether the script itself puts the adapter in
    scenario: str = ""  # what is trained of the whole model, as a lab's cell has it
    reference: bool = False  # whether the script hands over a reference model
    form: str = "prompt"  # of SFT's rows, or messages
    images: tuple[int, ...] | None = None  # of each row, where these are not the model's rows
    held: int = 0  # rows of an evaluation's own


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer", choices=sorted(TRAINERS))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--engine", default="ddp")
    parser.add_argument("--rows", default="mixed")
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--adapter", type=json.loads)
    said = parser.parse_args()
    place = trainers.place_of(said.engine) | {"output_dir": said.output_dir}
    settings = COMMON | place | OWN.get(said.trainer, {}) | said.options
    TRAINERS[said.trainer](Asked(said.model, said.rows, said.adapter), settings).train()


def tuned(asked: Asked) -> dict[str, Any]:
    """The model, and the adapter that is put in or already is."""
    model = model_of(asked)
    if asked.adapter is None:
        return {"model": model}
    if asked.wrapped:
        return {"model": peft.get_peft_model(model, config_of(asked.adapter))}
    return {"model": model, **adapter_of(asked)}


def adapter_of(asked: Asked) -> dict[str, Any]:
    return {} if asked.adapter is None else {"peft_config": config_of(asked.adapter)}


def config_of(adapter: dict[str, Any]) -> Any:
    said = {"r": 4, "target_modules": EVERYWHERE, **adapter}
    return getattr(peft, said.pop("kind", "LoraConfig"))(**said)


def rows_of(asked: Asked, name: str) -> list[dict[str, Any]]:
    rows = trainers.rows(asked.model, name)
    if asked.images is not None:
        shown = [image for row in rows for image in row["images"]]
        return [
            {**rows[n % len(rows)], "images": [shown[(n + other) % len(shown)] for other in range(count)]}
            for n, count in enumerate(asked.images)
        ]
    bare = {"mixed": rows[1::3], "text": rows}.get(asked.rows, [])
    for row in bare:
        row["images"] = []
    return rows


def model_of(asked: Asked) -> Any:
    """Loaded once the trainer's settings are there: under ZeRO-3 in parts."""
    config = transformers.AutoConfig.from_pretrained(asked.model)
    model = getattr(transformers, config.architectures[0]).from_pretrained(asked.model)
    if asked.scenario:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(loading.TRAINED[asked.scenario](name))
    return model


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


def processor_of(asked: Asked) -> Any:
    kind = AutoTokenizer if asked.rows == "text" else AutoProcessor
    return kind.from_pretrained(asked.model, padding_side="left")


def data_of(asked: Asked, made: list[dict[str, Any]], rows: list[dict[str, Any]] | None = None) -> Any:
    """What is trained on and what is evaluated; ``rows`` have the images."""
    if rows is not None and asked.rows != "text":
        made = [one | {"images": row["images"]} for one, row in zip(made, rows, strict=True)]
    images = "images" in made[0]
    evaluated = {"eval_dataset": dataset(made[: asked.held], images)} if asked.held else {}
    return {"train_dataset": dataset(made[asked.held :], images), **evaluated}


def home_of(name: str) -> Any:
    """Where this release has a trainer and its configuration."""
    own = hasattr(trl, f"{name}Config")
    return trl if own else importlib.import_module(f"trl.experimental.{name.lower()}")


def arguments_of(name: str, settings: dict[str, Any]) -> Any:
    return getattr(home_of(name), f"{name}Config")(**settings)


def sft(asked: Asked, settings: dict[str, Any]) -> Any:
    rows = rows_of(asked, "sft")
    made = [
        {"prompt": turns("user", "describe the image"), "completion": turns("assistant", answer(row))}
        for row in rows
    ]
    if asked.form == "messages":
        made = [{"messages": row["prompt"] + row["completion"]} for row in made]
    arguments = trl.SFTConfig(**settings)
    set_seed(0)
    return trl.SFTTrainer(
        args=arguments,
        processing_class=processor_of(asked),
        **data_of(asked, made, rows),
        **tuned(asked),
    )


def dpo(asked: Asked, settings: dict[str, Any]) -> Any:
    rows = rows_of(asked, "dpo")
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
    models = {"model": text_model(), **adapter_of(asked)} if asked.rows == "text" else tuned(asked)
    return trl.DPOTrainer(
        args=arguments,
        ref_model=model_of(asked) if asked.reference else None,
        processing_class=processor_of(asked),
        **data_of(asked, made, rows),
        **models,
    )


def pairs(asked: Asked, settings: dict[str, Any], name: str) -> Any:
    """Trainers that know no images: those of pairs of answers, and KTO's of single ones."""
    rows = rows_of(asked, "dpo")
    made: list[dict[str, Any]] = [
        {"prompt": "describe the image", "chosen": answer(row), "rejected": row["rejected_response"]}
        for row in rows
    ]
    if name == "KTO":
        made = [
            {"prompt": row["prompt"], "completion": row["chosen"], "label": number % 2 == 0}
            for number, row in enumerate(made)
        ]
    arguments = arguments_of(name, settings)
    set_seed(0)
    reference = {"ref_model": model_of(asked)} if asked.reference else {}
    return getattr(home_of(name), f"{name}Trainer")(
        args=arguments,
        processing_class=AutoTokenizer.from_pretrained(asked.model),
        **data_of(asked, made),
        **tuned(asked),
        **reference,
    )


def reward(asked: Asked, settings: dict[str, Any]) -> Any:
    made = [
        {
            "chosen": turns("user", "describe") + turns("assistant", answer(row)),
            "rejected": turns("user", "describe") + turns("assistant", row["rejected_response"]),
        }
        for row in rows_of(asked, "dpo")
    ]
    arguments = trl.RewardConfig(**settings)
    set_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(asked.model)
    sizes = {**TEXT, "vocab_size": 1024, "num_labels": 1, "pad_token_id": tokenizer.pad_token_id}
    return trl.RewardTrainer(
        model=transformers.Qwen2ForSequenceClassification(transformers.Qwen2Config(**sizes)),
        args=arguments,
        processing_class=tokenizer,
        **data_of(asked, made),
        **adapter_of(asked),
    )


def online(asked: Asked, settings: dict[str, Any], name: str) -> Any:
    rows = rows_of(asked, "sft")
    made = [{"prompt": turns("user", "describe the image")} for _ in rows]
    processor = processor_of(asked)
    tokenizer = getattr(processor, "tokenizer", processor)
    arguments = arguments_of(
        name, {"generation_kwargs": {"suppress_tokens": tokenizer.all_special_ids}, **settings}
    )

    def worth(completion_ids: list[list[int]], **columns: Any) -> list[float]:
        return [sum(ids) % 97 / 97 for ids in completion_ids]

    set_seed(0)
    return getattr(trl, f"{name}Trainer")(
        reward_funcs=worth,
        args=arguments,
        processing_class=processor,
        **data_of(asked, made, rows),
        **tuned(asked),
    )


TRAINERS: dict[str, Callable[[Asked, dict[str, Any]], Any]] = {
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
