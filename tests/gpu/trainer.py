"""HF Trainer in half precision on a GPU, which a CPU's Trainer refuses; runs in a rank that torchrun started.

    torchrun -m tests.gpu.trainer '{"engine": "ddp", "amp": "fp16", …}' [--patched]

Prints the losses and the norms of the gradients as the Trainer logs them, and what it evaluates between
steps where it does: of float16 by torch's scaler of losses, or by DeepSpeed's; clipped at 1, two
micro-batches a step. Without an engine one process takes the samples of all ranks, and nothing is
checkpointed.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import tempfile
from typing import Any

if "--patched" in sys.argv:
    import vlmpatch  # noqa: F401

import torch
import transformers
from torch import distributed

from tests.gpu import train

STEPS, WINDOW = 3, 2  # of the optimizer; micro-batches of each on a rank
RATES = {"full": 1e-3}  # of learning; of adapters a larger one
SCALE = 8  # DeepSpeed's first scale of a float16 loss, as a power of two


@dataclasses.dataclass(frozen=True)
class Cell(train.Cell):
    dtype: str = "float32"  # of the weights; what is computed in is amp's
    amp: str = "bf16"  # bf16, fp16
    beside: str = ""  # liger's kernels; compiled, by torch.compile; evaluated, between steps


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """In the order of the data set, so that one process sees what all ranks see."""

    def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def main() -> None:
    cell = Cell(**json.loads(sys.argv[1]))
    os.environ["LOCAL_RANK"] = "0"  # which the GPU is that all ranks share
    if cell.beside == "liger":
        importlib.import_module("liger_kernel.transformers").apply_liger_kernel_to_qwen2_vl()
    model = train.made(dataclasses.replace(cell, checkpointing="off"))
    alone = cell.engine == "none"
    if alone:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            os.environ.pop(name, None)
    elif cell.ranks > 1:
        distributed.init_process_group(cell.backend)
    if not alone and cell.tuning != "full":
        model.enable_input_require_grads()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=transformers.TrainingArguments(folder, **arguments(cell)),
            train_dataset=samples(cell),
            eval_dataset=samples(cell),
            data_collator=lambda rows: rows[0],
        )
        trainer.train()
    if trainer.is_world_process_zero():
        logs = [each for each in trainer.state.log_history if "loss" in each]
        said = {
            "losses": [each["loss"] for each in logs],
            "norms": [float(each["grad_norm"]) for each in logs],
            "evaluations": [each["eval_loss"] for each in trainer.state.log_history if "eval_loss" in each],
        }
        print(json.dumps(said), flush=True)
    if distributed.is_initialized():
        distributed.destroy_process_group()


def arguments(cell: Cell) -> dict[str, Any]:
    alone = cell.engine == "none"
    return {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": WINDOW * (cell.ranks if alone else 1),
        "max_steps": STEPS,
        "learning_rate": RATES.get(cell.tuning, 1e-2),
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 1.0,
        "eval_strategy": "steps" if cell.beside == "evaluated" else "no",
        "eval_steps": 1,
        "per_device_eval_batch_size": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "gradient_checkpointing": not alone,
        "bf16": cell.amp == "bf16",
        "fp16": cell.amp == "fp16",
        "deepspeed": deepspeed_config(cell),
        "torch_compile": cell.beside == "compiled" and not alone,
        "ddp_backend": None if alone else cell.backend,
    }


def deepspeed_config(cell: Cell) -> dict[str, Any] | None:
    if not cell.engine.startswith("zero"):
        return None
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto", "initial_scale_power": SCALE},
        "zero_optimization": {
            "stage": int(cell.engine[-1]),
            "overlap_comm": True,
            **({} if cell.beside == "evaluated" else {"stage3_param_persistence_threshold": 0}),
        },
    }


def samples(cell: Cell) -> list[dict[str, torch.Tensor]]:
    """Of all ranks and steps; where they are mixed every third is text alone."""

    def drawn(number: int) -> dict[str, torch.Tensor]:
        text = cell.mixed and number % 3 == 1
        return train.batch(train.Cell(mixed=True), 0) if text else train.batch(train.Cell(), number)

    every = (drawn(number) for number in range(STEPS * WINDOW * cell.ranks))
    return [{name: value.cpu() for name, value in each.items()} for each in every]


if __name__ == "__main__":
    main()
