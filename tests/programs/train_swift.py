"""ms-swift, told by one JSON object what to do; it ends with one line of what came of it.

``tests.e2e.drawn_swift`` draws what it is told, ``tests.lab.found`` has the line.
"""

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any

from tests.lab import found, trainers
from tests.shipped import start

COMMON = {
    "torch_dtype": "float32",
    "fp16": False,
    "bf16": False,
    "learning_rate": 1e-3,
    "adam_epsilon": 1e-3,  # of a gradient that is nearly nothing Adam would make rounding as large as any
    "weight_decay": 0,
    "lr_scheduler_type": "constant",
    "optim": "adamw_torch",
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "check_model": False,
    "add_version": False,
    "split_dataset_ratio": 0,
    "dataset_num_proc": 1,
    "dataloader_num_workers": 0,
    "dataset_shuffle": False,
    "train_dataloader_shuffle": False,
    "lora_rank": 4,
    "lora_alpha": 8,
    "lora_dropout": 0,
}


def main() -> None:
    asked = found.parser().parse_args()
    told = asked.told
    trainers.name_one_cpu()
    trainers.call(lambda: found.Meter(asked))
    if told["begins"] is not None:
        trainers.begin(told["begins"])
    trainers.know_the_image(Path(told["arguments"]["model"]))
    know_a_reward()
    if told["arguments"].get("attn_impl") == "flash_attention_2":
        sys.path.append(start.STANDINS)  # what is installed is no stand-in
        start.without_a_gpu()
    arguments = {**COMMON, **place_of(told), **told["arguments"]}
    trainers.swift_command(told["verb"], known(told["verb"], arguments))


def know_a_reward() -> None:
    """One of our own, which any other answer changes; ms-swift's ask for packages of mathematics."""
    home = importlib.import_module("swift.plugin" if trainers.old_swift() else "swift.rewards")

    class Worth(home.ORM):  # type: ignore[misc,name-defined]
        def __call__(self, completions: list[str], **columns: Any) -> list[float]:
            return [sum(map(ord, text)) % 97 / 97 for text in completions]

    home.orms["worth"] = Worth


def place_of(told: dict[str, Any]) -> dict[str, Any]:
    """Where it runs, in ms-swift's words."""
    if told.get("world") == 1:  # which names no backend: accelerate would take it for joined
        return {"use_cpu": True}
    if told["preset"]:
        return {"deepspeed": told["engine"]}
    small = {"stage3_param_persistence_threshold": 0}  # by default weights this small would stay whole
    place = trainers.place_of(told["engine"], {**small, **told["zero"]}, told["fsdp"])
    if told["engine"].startswith("fsdp") and not trainers.old_swift():
        config = {"fsdp_version": int(told["engine"][-1]), "cpu_ram_efficient_loading": False}
        return {"fsdp": {"fsdp": place["fsdp"], "fsdp_config": {**place["fsdp_config"], **config}}}
    return place


def known(verb: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Those that this release has."""
    if trainers.old_swift():
        argument = importlib.import_module("swift.llm.argument")
        fields = argument.TrainArguments if verb == "sft" else argument.RLHFArguments
    else:
        argument = importlib.import_module("swift.arguments")
        fields = argument.SftArguments if verb == "sft" else argument.RLHFArguments
    names = {field.name for field in dataclasses.fields(fields)} | {"tuner_type"}
    return {name: value for name, value in arguments.items() if name in names}


if __name__ == "__main__":
    main()
