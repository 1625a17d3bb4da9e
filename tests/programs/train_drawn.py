"""HF Trainer, told by one JSON object what to do; it ends with one line of what came of it.

``tests.e2e.drawn_trainer`` draws what it is told, ``tests.lab.found`` has the line.
"""

import importlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.axes.data import batch_of
from tests.lab import found, resumed, trainers
from vlmpatch_lab import loading
from vlmpatch_lab.cell import Cell
from vlmpatch_lab.samples import Batch, Samples

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
NO_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB."  # by these words accelerate knows it


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


class OutOfMemory(transformers.Trainer):  # type: ignore[misc]
    """Has no memory for the first batch, after its forward or ``late``, in its backward."""

    late = False
    failed = False

    def compute_loss(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        if self.failed:
            return super().compute_loss(model, *args, **kwargs)
        self.failed = True
        first = next(m for n, m in model.named_modules() if n.endswith("layers.0"))
        called = first.register_forward_hook(self.reached)
        found = super().compute_loss(model, *args, **kwargs)
        called.remove()
        if not self.late:
            raise RuntimeError(NO_MEMORY)
        return found

    def reached(self, _: Any, __: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        hidden.register_hook(self.fail) if self.late and hidden.requires_grad else None

    def fail(self, _: Any) -> None:
        raise RuntimeError(NO_MEMORY)


class OutOfMemoryLate(OutOfMemory):
    late = True


class Generating(transformers.Seq2SeqTrainer):  # type: ignore[misc]
    """Generates where it evaluates and predicts."""

    def __init__(self, **said: Any) -> None:
        said["model"].generation_config.update(max_new_tokens=3, min_new_tokens=3, do_sample=False)
        super().__init__(**said)


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


MADE = {
    "": transformers.Trainer,
    "loss": OwnLoss,
    "step": OwnStep,
    "groups": OwnGroups,
    "memory": OutOfMemory,
    "late_memory": OutOfMemoryLate,
    "generate": Generating,
}
CALLBACKS = {"freezing": Freezing, "evaluating": EvaluatingOnce}


def main() -> None:
    parser = found.parser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--output_dir", type=Path, required=True)
    asked = parser.parse_args()
    told = asked.told
    trainers.name_one_cpu()
    small = {"stage3_param_persistence_threshold": 0}  # by default weights this small would stay whole
    place = trainers.place_of(told["engine"], {**small, **told["zero"]}, told["fsdp"])
    cell = Cell(told["kind"], tuning=told["tuning"], checkpointing="off", scenario=told["scenario"])
    samples = Samples(cell, asked.model)
    rows = [(samples.image if image else samples.text)(n) for n, image in enumerate(told["rows"])]
    held = len(rows) // 3
    logged: list[list[float]] = []

    def made(apart: float = 0.0) -> Any:
        generates = told["trainer"] == "generate"
        make = transformers.Seq2SeqTrainingArguments if generates else transformers.TrainingArguments
        more = {"predict_with_generate": True} if generates else {}
        settings = make(
            output_dir=str(asked.output_dir), **{**COMMON, **place, **known(told["arguments"]), **more}
        )
        model = loading.prepare(cell, asked.model)
        resumed.move(model, apart) if apart else None
        if cell.tuning != "full" and told["input_grads"]:
            model.enable_input_require_grads()
        metrics = (
            {"compute_metrics": mean, "preprocess_logits_for_metrics": largest} if told["metrics"] else {}
        )
        metrics |= {"compute_metrics": mean} if generates else {}
        data = rows[held:]
        return hooked(MADE[told["trainer"]], told["ddp"])(
            model=model,
            args=settings,
            data_collator=lambda rows: batch_of(rows) if len(rows) > 1 else dict(rows[0]),
            train_dataset=Streamed(data) if told["streamed"] else data,
            eval_dataset=rows[:held],
            callbacks=[CALLBACKS[name]() for name in told["callbacks"]],
            **metrics,
        )

    trainer = made()
    trained = found.trained(trainer.model)
    before = found.values(trainer.model, trained) if asked.keep else {}
    for act in told["acts"]:
        if act in ("resume", "again"):
            importlib.import_module("accelerate.state").AcceleratorState._reset_state()
            logged.append(found.logged(trainer.state.log_history))
            resumes = act == "resume"
            trainer = made(resumed.APART if resumes else 0.0)
            trainer.train(resume_from_checkpoint=str(asked.output_dir / "checkpoint-2") if resumes else None)
        elif act == "predict":
            said = trainer.predict(rows[:held]).metrics
            logged.append([said[name] for name in ("test_loss", "test_mean") if name in said])
        elif act == "train":
            trainer.train(ignore_keys_for_eval=told["ignored"])
        else:
            trainer.evaluate()
    logged.append(found.logged(trainer.state.log_history))
    after = found.values(trainer.model, trained)
    found.tell(asked, [*itertools.chain(*logged)], before, after)


class Streamed(torch.utils.data.IterableDataset[Batch]):  # type: ignore[misc]
    """Rows of which nobody knows how many there are."""

    def __init__(self, rows: list[Batch]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.rows)


def hooked(trainer: Any, said: dict[str, Any]) -> Any:
    """A Trainer whose accelerator is told more of DDP: HF Trainer itself knows few of its words."""
    if not said:
        return trainer

    class Hooked(trainer):  # type: ignore[misc]
        def _wrap_model(self, model: Any, training: bool = True, **kwargs: Any) -> Any:
            wrapped = super()._wrap_model(model, training=training, **kwargs)
            if not training:  # evaluated first: nothing is told of DDP yet
                return wrapped
            hooks = importlib.import_module("accelerate.utils").DDPCommunicationHookType
            for name, value in said.items():
                told = hooks(value) if name in ("comm_hook", "comm_wrapper") else value
                setattr(self.accelerator.ddp_handler, name, told)
            return wrapped

    return Hooked


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


if __name__ == "__main__":
    main()
