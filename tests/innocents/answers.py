"""What programs with TRL's trainers answer to: prompts with images and without, to a small Qwen2-VL."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, Image, disable_progress_bars
from datasets import Sequence as ListOf
from transformers import AutoProcessor, PrinterCallback, Qwen2VLForConditionalGeneration, set_seed

from tests import families

FOLDER = Path("model")
disable_progress_bars()  # they say how long things took
SHOWN = ("loss", "grad_norm", "reward", "reward_std", "completions/mean_length")


def rows(kinds: Sequence[str], column: str = "images") -> Any:
    """A row for each of ``kinds``: "image", or "text" for none."""
    if not FOLDER.exists():
        families.make("qwen2_vl", FOLDER)
    paths = sorted(str(path) for path in (FOLDER / "data").glob("*.png"))
    prompt = [{"role": "user", "content": "describe"}]
    if not column:
        return Dataset.from_list([{"prompt": prompt} for _ in kinds])
    held = [[paths[number % len(paths)]] if kind == "image" else [] for number, kind in enumerate(kinds)]
    if column == "image":
        one = [{"prompt": prompt, "image": images[0]} for images in held]
        return Dataset.from_list(one).cast_column("image", Image())
    made = Dataset.from_list([{"prompt": prompt, column: images} for images in held])
    return made.cast_column(column, ListOf(Image()))


def reward(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """One that any other token would change."""
    return [sum(ids) % 97 / 97 for ids in completion_ids]


def trainer(cls: Any, config: Any, data: Any, *, frozen: bool = False, **said: Any) -> Any:
    """One of TRL's trainers around a new model, its tower ``frozen`` or not."""
    logging.disable(logging.WARNING)
    processor = AutoProcessor.from_pretrained(FOLDER, padding_side="left")
    arguments: dict[str, Any] = {
        "output_dir": "out",
        "max_steps": 2,
        "per_device_train_batch_size": 2,
        "num_generations": 2,
        "max_completion_length": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "shuffle_dataset": False,
        "dataloader_pin_memory": False,
        "generation_kwargs": {"suppress_tokens": processor.tokenizer.all_special_ids},
        "use_cpu": True,
        **({"ddp_backend": "gloo", "ddp_find_unused_parameters": False} if "RANK" in os.environ else {}),
        **said,
    }
    set_seed(0)
    model = Qwen2VLForConditionalGeneration.from_pretrained(FOLDER)
    if frozen:
        model.model.visual.requires_grad_(False)
    made = cls(
        model=model,
        reward_funcs=reward,
        args=config(**arguments),
        train_dataset=data,
        processing_class=processor,
    )
    made.remove_callback(PrinterCallback)  # prints how long things took
    return made


def train(cls: Any, config: Any, data: Any, **said: Any) -> Any:
    """The same, trained; the first rank prints what came of it."""
    made = trainer(cls, config, data, **said)
    made.train()
    if made.accelerator.is_main_process:
        show(made)
    return made


def show(made: Any) -> None:
    """What a trainer has logged, the images it keeps for its log, and the weights it ends with."""
    for entry in made.state.log_history:
        print({name: round(entry[name], 6) for name in SHOWN if name in entry})
    kept = made._logs["images"]
    print(len(made._logs["prompt"]), [image.size for images in kept for image in images or ()])
    print([round(value.detach().norm().item(), 5) for value in made.model.parameters()][::4])


def on_two_ranks(work: Callable[[], object]) -> None:
    """``work`` in two processes that train together."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank in range(2):
        if pid := os.fork():
            pids.append(pid)
            continue
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        work()
        import torch.distributed as dist

        dist.destroy_process_group()
        raise SystemExit
    print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids], flush=True)
