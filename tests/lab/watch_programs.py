"""Healthy trainings that a watch must not touch: each prints one line of JSON with all it has computed.

    [torchrun …] python -m tests.lab.watch_programs PROGRAM …

vlmpatch is imported first, so that VLMPATCH_WATCH acts. What a program prints is compared with what it
prints without the watch, to the last bit.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import random
import sys
import tempfile
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import vlmpatch  # noqa: F401
from tests.innocents.llama import llama

RANK = int(os.environ.get("RANK", "0"))
SCALED, LITTLE = {"init_scale": 2.0**16}, {"init_scale": 2.0**4}
TOO_MUCH = {"init_scale": 2.0**34, "backoff_factor": 2.0**-18}  # in the first step
OF_A_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Forward(LlamaForCausalLM):  # type: ignore[misc]
    """A model that changes ``embeddings`` before it goes on as usual."""

    def change(self, embeddings: Any) -> Any:
        return embeddings

    def forward(self, input_ids: Any = None, labels: Any = None, **more: Any) -> Any:
        if input_ids is None:
            return super().forward(labels=labels, **more)
        more["inputs_embeds"] = self.change(self.get_input_embeddings()(input_ids))
        return super().forward(labels=labels, **more)


class Normalised(Forward):
    """Counts batches and keeps their statistics in buffers."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.norm = torch.nn.BatchNorm1d(16)

    def change(self, embeddings: Any) -> Any:
        return self.norm(embeddings.transpose(1, 2)).transpose(1, 2)


class Masked(Forward):
    """SpecAugment: spans that numpy draws, and others that Python and a generator of its own draw."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.own = random.Random(5)
        self.of_numpy = np.random.default_rng(6)
        self.of_torch = torch.Generator().manual_seed(7)

    def change(self, embeddings: Any) -> Any:
        keep = torch.ones_like(embeddings)
        keep[:, np.random.randint(4)] = 0
        keep[:, 4 + random.randrange(2)] = 0
        keep[:, :, self.own.randrange(8)] = 0
        keep[:, :, 8 + int(self.of_numpy.integers(4))] = 0
        keep[:, :, 12 + int(torch.randint(4, (1,), generator=self.of_torch))] = 0
        return embeddings * keep


class Queue(Forward):
    """Replaces a buffer, writes into a tensor that is none, and follows its weights with a slow copy."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.register_buffer("queue", torch.zeros(16))
        self.slow = torch.nn.Linear(16, 16)
        self.slow.requires_grad_(False)
        self.seen = [torch.zeros(())]

    def change(self, embeddings: Any) -> Any:
        with torch.no_grad():
            self.queue: Any = 0.5 * self.queue + embeddings.mean((0, 1))
            self.slow.weight.data.mul_(0.9).add_(self.lm_head.weight[:16], alpha=0.1)
            self.slow.bias.data = self.slow.bias.data + 1
            self.seen[0] += embeddings.abs().sum()
        return embeddings + self.slow(self.queue) * 0.01 + self.seen[0] * 1e-4


class Counting(Forward):
    """Counts its calls in every way there is, and a schedule depends on it."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.calls, self.history = 0, collections.deque[int](maxlen=2)
        self.by_kind: dict[str, list[int]] = {"train": []}
        self.state = Counter()
        hooked = 0

        def count(*_: Any) -> None:
            nonlocal hooked
            hooked += 1
            self.hooked = hooked

        self.lm_head.register_forward_hook(count)

    def change(self, embeddings: Any) -> Any:
        self.calls += 1
        self.history.append(self.calls)
        self.by_kind["train"].append(self.calls)
        self.state.number += 1
        total = self.calls + sum(self.history) + sum(self.by_kind["train"]) + self.state.number
        return embeddings * (1 + 0.01 * (total + getattr(self, "hooked", 0)))


class Counter:
    def __init__(self) -> None:
        self.number = 0


class Iterating(Forward):
    """Takes from an iterator, which nobody can wind back."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.factors = iter([1 + 0.1 * number for number in range(100)])

    def change(self, embeddings: Any) -> Any:
        return embeddings * next(self.factors)


class MasksItsLabels(Forward):
    """Writes into what it is given."""

    def forward(self, input_ids: Any = None, labels: Any = None, **more: Any) -> Any:
        if labels is not None:
            labels += (labels < 8).to(labels.dtype)
        return super().forward(input_ids=input_ids, labels=labels, **more)


class Half(Forward):
    """Computes in float16, with a loss so small that its gradients become zero unless it is scaled."""

    def forward(self, input_ids: Any = None, labels: Any = None, **more: Any) -> Any:
        with torch.autocast("cpu", torch.float16):
            output = super().forward(input_ids=input_ids, labels=labels, **more)
        output.loss = output.loss * 1e-3
        return output


class Unsteady(Forward):
    """Computes in bfloat16, whose gradients are never twice the same, as by a GPU's attention."""

    def forward(self, input_ids: Any = None, labels: Any = None, **more: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(input_ids=input_ids, labels=labels, **more)

    def change(self, embeddings: Any) -> Any:
        checkpointed = any(getattr(part, "gradient_checkpointing", False) for part in self.modules())
        if embeddings.requires_grad and checkpointed:
            embeddings.register_hook(lambda gradient: gradient * 1.004)
        return embeddings


class Communicating(Forward):
    """Averages something over the ranks in its forward."""

    def change(self, embeddings: Any) -> Any:
        mean = embeddings.detach().mean()
        dist.all_reduce(mean)
        return embeddings + mean


class Generates(TrainerCallback):  # type: ignore[misc]
    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        training = model.training
        model.eval().generate(torch.ones(1, 3, dtype=torch.long), max_new_tokens=2, do_sample=False)
        model.train(training)


class EvaluatesOnOneRank(TrainerCallback):  # type: ignore[misc]
    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if RANK == 0:
            with torch.no_grad():
                batch = {name: value[None] for name, value in rows(1)[0].items()}
                model.eval()(**batch)
                model.train()


def rows(count: int = 16, seed: int = 1) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(3, 32, (8,), generator=generator) for _ in range(count)]
    return [{"input_ids": each, "labels": each.clone()} for each in ids]


def trained(
    cls: Any = LlamaForCausalLM,
    callbacks: Any = None,
    seed: int = 1,
    checkpointing: bool = True,
    prepare: Any = None,
    scaler: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Everything that is left after four steps: weights, buffers, losses, random states.

    Args:
        cls: of the model.
        callbacks: of the Trainer.
        seed: of the data.
        checkpointing: whether it is on.
        prepare: what is done to the model before the Trainer has it.
        scaler: what torch's scaler of losses is told, where there is one.
        more: of the Trainer's arguments.
    """
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = prepare(llama(cls)) if prepare else llama(cls)
    arguments: dict[str, Any] = {"max_steps": 4, "per_device_train_batch_size": 2, **more}
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        gradient_checkpointing=checkpointing,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        learning_rate=1e-3,
        **arguments,
    )
    trainer = Trainer(model=model, args=args, train_dataset=rows(seed=seed), callbacks=callbacks)
    if scaler is not None:
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", **scaler)
    trainer.train()
    return {
        "losses": [line["loss"] for line in trainer.state.log_history if "loss" in line],
        "tensors": {name: digest(value) for name, value in model.state_dict().items()},
        "attributes": {name: repr(vars(model).get(name)) for name in ("calls", "history", "by_kind", "seen")},
        "hooked": [vars(model).get("hooked"), getattr(vars(model).get("state"), "number", None)],
        "random": [digest(torch.get_rng_state()), random.random(), float(np.random.rand())],
    }


class Seeing(Forward):
    """Has a tower that sees the embeddings, and a projector."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.vision_tower = Tower()
        self.multi_modal_projector = torch.nn.Linear(16, 16)

    def change(self, embeddings: Any) -> Any:
        return embeddings + self.multi_modal_projector(self.see(embeddings.detach()))

    def see(self, images: Any) -> Any:
        return self.vision_tower(images)


class Tower(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, images: Any) -> Any:
        return self.fc2(self.fc1(images).relu())


class SeeingWithoutAGraph(Seeing):
    def see(self, images: Any) -> Any:
        with torch.no_grad():
            return super().see(images)


class Blind(Seeing):
    """Features were computed beforehand."""

    def see(self, images: Any) -> Any:
        return torch.ones_like(images)


def switched_off(model: Any) -> Any:
    """A tower whose own ``forward`` was written when it was to stay frozen."""
    model.vision_tower.forward = torch.no_grad()(model.vision_tower.forward)
    return model


def frozen_tower(model: Any) -> Any:
    model.vision_tower.requires_grad_(False)
    return model


def adapted(model: Any, targets: Any = ("q_proj", "fc1"), **more: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=targets if isinstance(targets, str) else list(targets), **more)
    return get_peft_model(model, config)


def frozen_afterwards(model: Any) -> Any:
    made = adapted(model)
    frozen_tower(made.base_model.model)
    return made


def unfrozen_before(model: Any, **more: Any) -> Any:
    model.requires_grad_(False)
    model.multi_modal_projector.requires_grad_(True)
    return adapted(model, **more)


def digest(value: Any) -> str:
    return hashlib.sha256(value.detach().contiguous().numpy().tobytes()).hexdigest()[:16]


def by_itself() -> None:
    """This rank's Trainer is to know nothing of the others."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    for name in OF_A_LAUNCHER:
        os.environ.pop(name, None)


def independent() -> Any:
    """Two Trainers in one job that have nothing to do with each other."""
    by_itself()
    return trained(Normalised if RANK else LlamaForCausalLM, seed=RANK, max_steps=4 + 4 * RANK)


def on_rank_0_alone() -> Any:
    by_itself()
    return trained() if RANK == 0 else "nothing"


def watched_on_one_rank() -> Any:
    """A callback that a script adds to one Trainer only."""
    from vlmpatch.tools.watch import WatchCallback

    return trained(callbacks=[WatchCallback()] if RANK == 0 else [])


def communicates() -> Any:
    """Where one rank compares and the other does not, an extra forward would wait for ever."""
    return trained(Communicating, checkpointing=RANK == 0, ddp_find_unused_parameters=False)


PROGRAMS = {
    "plain": trained,
    "batch_norm": lambda: trained(Normalised),
    "random_numbers": lambda: trained(Masked),
    "replaced_buffer": lambda: trained(Queue),
    "counters_and_hooks": lambda: trained(Counting),
    "iterator": lambda: trained(Iterating),
    "writes_into_its_batch": lambda: trained(MasksItsLabels),
    "accumulation": lambda: trained(Normalised, gradient_accumulation_steps=2),
    "generate_in_a_callback": lambda: trained(Normalised, callbacks=[Generates()]),
    "autocast": lambda: trained(Unsteady),
    "half_precision": lambda: trained(Half, scaler=SCALED, max_grad_norm=0),
    "half_precision_scaled_little": lambda: trained(Half, scaler=LITTLE, max_grad_norm=0),
    "half_precision_overflows": lambda: trained(Half, scaler=TOO_MUCH, max_grad_norm=0),
    "tower_is_trained": lambda: trained(Seeing),
    "tower_is_frozen": lambda: trained(Seeing, prepare=frozen_tower),
    "tower_without_a_graph": lambda: trained(SeeingWithoutAGraph),
    "tower_switches_off": lambda: trained(Seeing, prepare=switched_off, checkpointing=False),
    "tower_is_not_called": lambda: trained(Blind),
    "adapters": lambda: trained(Seeing, prepare=adapted),
    "adapters_by_a_pattern": lambda: trained(
        Seeing, prepare=lambda model: adapted(model, r"(?!.*vision_tower).*_proj")
    ),
    "adapters_frozen_afterwards": lambda: trained(Seeing, prepare=frozen_afterwards),
    "pattern_in_a_list": lambda: trained(
        Seeing, prepare=lambda model: adapted(model, ("q_proj", "vision_tower.*fc1"))
    ),
    "unfrozen_before": lambda: trained(Seeing, prepare=unfrozen_before),
    "unfrozen_and_saved": lambda: trained(
        Seeing, prepare=lambda model: unfrozen_before(model, modules_to_save=["multi_modal_projector"])
    ),
    "independent": independent,
    "on_rank_0_alone": on_rank_0_alone,
    "watched_on_one_rank": watched_on_one_rank,
    "evaluation_on_one_rank": lambda: trained(callbacks=[EvaluatesOnOneRank()]),
    "communicates": communicates,
}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        # One write: ranks share the output.
        sys.stdout.write(f"\n[{name} {RANK}] {json.dumps(PROGRAMS[name](), sort_keys=True)}\n")
        sys.stdout.flush()
        sys.stderr.write(f"\n[{name} {RANK}] is over\n")
