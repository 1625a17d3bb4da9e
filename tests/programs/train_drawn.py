"""HF Trainer, told by one JSON object what to do; it ends with one line of what came of it.

``tests.e2e.drawn_trainer`` draws what it is told. ``FOUND`` and a JSON object: every loss, norm of gradients
and evaluation that the Trainer logged, and how far the trained parameters are from those of the training that
is right, as a share of the most that it moved any (``--right``; ``--keep`` makes such a file).
"""

import argparse
import importlib
import itertools
import json
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.lab import resumed, trainers
from vlmpatch_lab import loading, recording
from vlmpatch_lab.cell import Cell
from vlmpatch_lab.samples import Samples

COMMON = {
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "learning_rate": 1e-3,
    # Adam divides by a gradient's size: of one that is nearly nothing it makes rounding as large as any.
    "adam_epsilon": 1e-3,
    "lr_scheduler_type": "constant",
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "bf16": False,
    "remove_unused_columns": False,
    "optim": "adamw_torch",
}
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "fp16": {"enabled": "auto"},  # transformers 4 hands images over in fp16 where no precision is named
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}
LOGGED = ("loss", "grad_norm", "eval_loss", "test_loss", "eval_mean")


class OwnLoss(transformers.Trainer):  # type: ignore[misc]
    """Computes the loss as scripts did before there was a count of items."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class OwnStep(transformers.Trainer):  # type: ignore[misc]
    """Looks at the batch, and at the model, around the library's step."""

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        assert inputs["input_ids"].dim() == 2
        loss = super().training_step(model, inputs, *args, **kwargs)
        assert model.training
        return loss


class OwnGroups(transformers.Trainer):  # type: ignore[misc]
    """The tower learns at a rate of its own, as most recipes have it."""

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        if (known := getattr(self, "optimizer", None)) is not None:  # under DeepSpeed this is called twice
            return known
        trained = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        tower = [p for n, p in trained if any(word in n for word in loading.TOWERS)]
        rest = [p for n, p in trained if not any(word in n for word in loading.TOWERS)]
        groups: list[dict[str, Any]] = [{"params": tower, "lr": 2e-4}, {"params": rest}]
        made = self.optimizer = torch.optim.SGD([group for group in groups if group["params"]], lr=1e-3)
        return made


class Freezing(transformers.TrainerCallback):  # type: ignore[misc]
    """Freezes the tower after the first step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for name, parameter in kwargs["model"].named_parameters():
            if any(word in name for word in loading.TOWERS):
                parameter.requires_grad_(False)


class EvaluatingOnce(transformers.TrainerCallback):  # type: ignore[misc]
    """Asks for an evaluation after the first micro-batch of a window."""

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_evaluate = state.global_step == 1


MADE = {"": transformers.Trainer, "loss": OwnLoss, "step": OwnStep, "groups": OwnGroups}
CALLBACKS = {"freezing": Freezing, "evaluating": EvaluatingOnce}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--told", type=json.loads, required=True)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--right", type=Path)
    asked = parser.parse_args()
    told = asked.told
    trainers.name_one_cpu()
    place = place_of(told)
    cell = Cell(told["kind"], tuning=told["tuning"], checkpointing="off", scenario=told["scenario"])
    samples = Samples(cell, asked.model)
    rows = [(samples.image if image else samples.text)(n) for n, image in enumerate(told["rows"])]
    held = len(rows) // 3
    logged: list[list[float]] = []

    def made(apart: float = 0.0) -> Any:
        settings = transformers.TrainingArguments(
            output_dir=str(asked.output_dir), **{**COMMON, **place, **known(told["arguments"])}
        )
        model = loading.prepare(cell, asked.model)
        resumed.move(model, apart) if apart else None
        if cell.tuning != "full" and told["input_grads"]:
            model.enable_input_require_grads()
        metrics = (
            {"compute_metrics": mean, "preprocess_logits_for_metrics": largest} if told["metrics"] else {}
        )
        return MADE[told["trainer"]](
            model=model,
            args=settings,
            data_collator=lambda rows: dict(rows[0]),
            train_dataset=rows[held:],
            eval_dataset=rows[:held],
            callbacks=[CALLBACKS[name]() for name in told["callbacks"]],
            **metrics,
        )

    trainer = made()
    trained = {trainers.plain(n) for n, p in trainer.model.named_parameters() if p.requires_grad}
    before = values(trainer, trained) if asked.keep else {}
    for act in told["acts"]:
        if act in ("resume", "again"):
            importlib.import_module("accelerate.state").AcceleratorState._reset_state()
            logged.append(of(trainer))
            resumes = act == "resume"
            trainer = made(resumed.APART if resumes else 0.0)
            trainer.train(resume_from_checkpoint=str(asked.output_dir / "checkpoint-2") if resumes else None)
        elif act == "predict":
            logged.append([trainer.predict(rows[:held]).metrics["test_loss"]])
        elif act == "train":
            trainer.train(ignore_keys_for_eval=told["ignored"])
        else:
            trainer.evaluate()
    logged.append(of(trainer))
    after = values(trainer, trained)
    found = {"logged": [*itertools.chain(*logged)], "apart": 0.0}
    if asked.right:
        right = torch.load(asked.right)
        most = max(float((right["after"][n] - v).abs().max()) for n, v in right["before"].items())
        found["apart"] = max(float((after[n] - v).abs().max()) for n, v in right["after"].items()) / most
    if torch.distributed.get_rank() == 0:
        if asked.keep:
            torch.save({"before": before, "after": after}, asked.keep)
        print("FOUND", json.dumps(found), flush=True)


def known(arguments: dict[str, Any]) -> dict[str, Any]:
    """Those that this release has."""
    fields = transformers.TrainingArguments.__dataclass_fields__
    return {name: value for name, value in arguments.items() if name in fields}


def largest(logits: Any, labels: Any) -> Any:
    """Of every row one number: models return more beside their logits where there are images."""
    first = logits[0] if isinstance(logits, tuple) else logits
    return first.float().amax(dim=(1, 2))


def mean(predicted: Any) -> dict[str, float]:
    return {"mean": float(predicted.predictions.mean())}


def of(trainer: Any) -> list[float]:
    return [float(entry[name]) for entry in trainer.state.log_history for name in LOGGED if name in entry]


def values(trainer: Any, trained: set[str]) -> dict[str, Any]:
    """Of what was trained at first: ZeRO-3 shows no master copy of what is frozen."""
    for name, parameter in trainer.model.named_parameters():
        parameter.requires_grad_(trainers.plain(name) in trained)
    with trainers.gathered(trainer.model):
        found: dict[str, Any] = recording.parameters(trainer.model)
    return {trainers.plain(name): value for name, value in found.items()}


def place_of(told: dict[str, Any]) -> dict[str, Any]:
    """Where it runs: DDP, a stage of ZeRO, or a version of FSDP."""
    engine = told["engine"]
    if engine.startswith("zero"):
        # By default weights this small would stay whole.
        small = {"stage3_param_persistence_threshold": 0} if engine == "zero3" else {}
        config = {**DEEPSPEED, "zero_optimization": {"stage": int(engine[-1]), **small, **told["zero"]}}
        return {"deepspeed": config}
    if engine.startswith("ddp"):
        search = {"ddp_find_unused_parameters": True} if engine == "ddp_unused" else {}
        return {"use_cpu": True, "ddp_backend": "gloo", **search}
    trainers.let_accelerate_shard_on_cpu(engine[-1])
    config = {"version": int(engine[-1]), "sync_module_states": False, **told["fsdp"]}
    return {"fsdp": "full_shard auto_wrap", "fsdp_config": config}


if __name__ == "__main__":
    main()
