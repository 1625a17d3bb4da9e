"""A row spread over two ranks (DeepSpeed's Ulysses), as scenarios of ``field.py``: HF Trainer, and a script.

The measure is its loss in one process. The halves of the row differ in how many labels count. HF Trainer sees
it in each micro-batch, as which row a rank is handed is accelerate's to say.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers

from tests.lab import sequence
from vlmpatch_lab import engines, recording, samples
from vlmpatch_lab.cell import WORLD, Cell

Gradients = dict[str, torch.Tensor]
Batch = dict[str, torch.Tensor]
LENGTH = 16  # tokens of a row
EPOCHS = 2
ROWS = 4  # of an epoch that is resumed


def row(number: int = 0) -> Batch:
    """Of shape [1, LENGTH]."""
    ids = torch.randint(5, 60, (1, LENGTH), generator=torch.Generator().manual_seed(number))
    labels = ids.clone()
    labels[:, :3] = samples.IGNORED
    return {"input_ids": ids, "labels": labels, "position_ids": torch.arange(LENGTH)[None]}


def right(model: Any) -> Gradients:
    """Of the whole row, in this process."""
    model(**row()).loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def by_trainer(cell: Cell, make: Callable[[], Any]) -> tuple[Gradients, Gradients]:
    """HF Trainer with ``sp_size`` 2 and two micro-batches a window.

    Returns:
        The first step's gradients, and the right ones.
    """
    measure = right(make())  # before attention is spread, in this process for good
    trainers: Any = importlib.import_module("tests.lab.trainers")
    with tempfile.TemporaryDirectory(prefix="sequences-") as place:
        recorded = trainers.record(Path(place) / "gradients.pt")
        _train(cell, make, Path(place) / "output")
        found: Gradients = torch.load(recorded[0])
    return found, measure


def over_epochs(cell: Cell, make: Callable[[], Any]) -> tuple[Gradients, Gradients]:
    """The same over two epochs, at a rate of zero, which ``cell`` has to name, too.

    Returns:
        The sum of all steps' gradients, and that of as many steps as the Trainer announced.
    """
    measure = right(make())
    trainers: Any = importlib.import_module("tests.lab.trainers")
    with tempfile.TemporaryDirectory(prefix="sequences-") as place, trainers.summed() as found:
        announced = _train(cell, make, Path(place), max_steps=-1, num_train_epochs=EPOCHS, learning_rate=0.0)
    return found, {name: announced * gradient for name, gradient in measure.items()}


def resumed_at(cell: Cell, make: Callable[[], Any], at: int) -> Gradients:
    """Over epochs of rows that differ, stopped after ``at`` steps: raises where that is another training.

    Returns:
        What the parameters are in the end.
    """
    from tests.lab import resumed, trainers

    trainers.let_accelerate_see_all_ranks()
    with tempfile.TemporaryDirectory(prefix="sequences-") as place:
        shared = [Path(place)]
        dist.broadcast_object_list(shared)

        def train(apart: float, checkpoint: str | None) -> resumed.Trained:
            _begin_anew()
            model = make()
            resumed.move(model, apart)
            of_steps = {"save_strategy": "steps", "save_steps": at, "logging_steps": 1}
            length = {"max_steps": -1, "num_train_epochs": EPOCHS, "gradient_accumulation_steps": 1}
            data = [row(number) for number in range(ROWS)]
            trainer = _trainer(cell, model, shared[0], data, **of_steps, **length)
            trainer.train(resume_from_checkpoint=checkpoint)
            return resumed.trained(trainer)

        ended: Gradients = resumed.compare(train, shared[0], at)["parameters"]
    return ended


def _begin_anew() -> None:
    """Nothing of sequence parallelism is set up, as in a new process."""
    groups: Any = importlib.import_module("deepspeed.runtime.sequence_parallel.parallel_state_sp")
    groups._SEQUENCE_PARALLEL_GROUP = groups._SEQUENCE_DATA_PARALLEL_GROUP = None
    modeling: Any = importlib.import_module("transformers.modeling_utils")
    modeling.ALL_ATTENTION_FUNCTIONS["sdpa"] = transformers.integrations.sdpa_attention.sdpa_attention_forward


def _train(cell: Cell, make: Callable[[], Any], output: Path, **settings: Any) -> int:
    """HF Trainer with accelerate's ``sp_size``, over rows that are all the same; its number of steps."""
    trainer = _trainer(cell, make(), output, [row() for _ in range(WORLD)], **settings)
    trainer.train()
    announced: int = trainer.state.max_steps
    return announced


def _trainer(cell: Cell, model: Any, output: Path, data: list[Batch], **settings: Any) -> Any:
    trainers: Any = importlib.import_module("tests.lab.trainers")
    accelerate: Any = importlib.import_module("accelerate")
    handler = accelerate.utils.DeepSpeedSequenceParallelConfig(sp_attn_implementation="sdpa")
    spread = accelerate.ParallelismConfig(sp_size=WORLD, sp_backend="deepspeed", sp_handler=handler)
    said = {**trainers.arguments(cell, output), "gradient_accumulation_steps": WORLD, **settings}
    said["deepspeed"]["gradient_accumulation_steps"] = said["gradient_accumulation_steps"]
    arguments = transformers.TrainingArguments(**said, remove_unused_columns=False, parallelism_config=spread)
    return transformers.Trainer(model, arguments, data_collator=lambda taken: taken[0], train_dataset=data)


def by_script(cell: Cell, make: Callable[[], Any]) -> tuple[Gradients, Gradients]:
    """The loop of ALST's tutorial.

    Returns:
        The gradients, and the right ones.
    """
    measure = right(make())
    engines.begin_deepspeed(cell)
    ulysses: Any = importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp")
    model, whole = make(), row()
    groups = ulysses.UlyssesSPAttentionHF.register_with_transformers(model, "sdpa", WORLD, micro_batch_size=1)
    engine = engines.DeepSpeed(cell, model, mpu=groups)
    whole["labels"] = torch.nn.functional.pad(whole["labels"][:, 1:], (0, 1), value=samples.IGNORED)
    own = {name: value.chunk(WORLD, 1)[dist.get_rank()] for name, value in whole.items()}
    mean = sequence.mean_loss(engine.engine, own["input_ids"], own["labels"], own["position_ids"])
    counted = (own["labels"] != samples.IGNORED).sum().float()
    engine.backward(sequence.gathered(mean, counted, groups.get_sequence_parallel_group()))
    return recording.gradients(engine, model), measure
