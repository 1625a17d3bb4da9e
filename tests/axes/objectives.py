"""What a training minimises: one function each, from one micro-batch of a rank to its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.nn.functional import all_gather
from torch.nn import functional

from vlmpatch_lab import loading
from vlmpatch_lab.samples import IGNORED, Batch

if TYPE_CHECKING:
    from tests.axes.data import Shares
    from tests.axes.training import Training

Objective = Callable[["Training", "Shares"], torch.Tensor]
BETA, TEMPERATURE = 0.5, 0.1


def sft(training: Training, shares: Shares) -> torch.Tensor:
    return torch.stack([share * training.engine.forward(batch) for share, batch in shares]).sum()


def summed(training: Training, shares: Shares) -> torch.Tensor:
    """A sum over labels by a number that is never zero, as trainers that count tokens have it."""
    ((_, batch),) = shares
    found = log_probabilities(training.engine.outputs(unlabelled(batch)), batch)
    return -found.sum() / 8


def autocast(dtype: torch.dtype) -> Objective:
    def cast(training: Training, shares: Shares) -> torch.Tensor:
        with torch.autocast("cpu", dtype, enabled=not training.measures):
            return sft(training, shares)

    return cast


def offloaded(training: Training, shares: Shares) -> torch.Tensor:
    with torch.autograd.graph.save_on_cpu():
        return sft(training, shares)


# --- parts of a sequence ------------------------------------------------------------------------------


def part(training: Training, batch: Batch, reduction: str = "sum") -> torch.Tensor:
    """The sum over the labels of this rank's part, or their mean."""
    seen = {name: batch[name] for name in ("input_ids", "position_ids")}
    logits, labels = training.engine.outputs(seen).logits[0], batch["shift_labels"][0]
    return functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction=reduction)


def own_share(training: Training, shares: Shares) -> torch.Tensor:
    """What this rank's part adds to the mean over the sequence, as Megatron has it."""
    ((_, batch),) = shares
    return sft(training, shares) if training.measures else part(training, batch) / batch["counted"]


def gathered(training: Training, shares: Shares) -> torch.Tensor:
    """The mean over the sequence on every rank, as ALST, accelerate and HF Trainer have it."""
    ((_, batch),) = shares
    if training.measures:
        return sft(training, shares)
    counted = (batch["shift_labels"] != IGNORED).sum()
    means: Any = all_gather(part(training, batch, "mean"))
    counts: Any = all_gather(counted)
    return (torch.stack(means) * torch.stack(counts)).sum() / batch["counted"]


# --- pairs and references -----------------------------------------------------------------------------


def unlabelled(batch: Batch) -> Batch:
    return {name: value for name, value in batch.items() if name != "labels"}


def log_probabilities(outputs: Any, batch: Batch) -> torch.Tensor:
    """Of each label that counts; zero for the others, of shape [rows, length - 1]."""
    labels = batch["labels"][:, 1:]
    counts = labels != IGNORED
    found = outputs.logits[:, :-1].float().log_softmax(-1)
    return found.gather(-1, labels.where(counts, 0)[..., None])[..., 0] * counts


def of_row(outputs: Any, batch: Batch) -> torch.Tensor:
    return log_probabilities(outputs, batch).sum(-1)


def rejected(batch: Batch) -> Batch:
    """The same picture and prompt, another answer: the labels in reverse."""
    counts = batch["labels"] != IGNORED
    other = dict(batch)
    for name in ("input_ids", "labels"):
        other[name] = batch[name].masked_scatter(counts, batch["labels"][counts].flip(0))
    return other


def reference(training: Training) -> Any:
    """The model as it was before the training, which learns nothing."""
    if "reference" not in training.kept:
        model = loading.load(training.cell, training.folder).eval().requires_grad_(False)
        training.kept["reference"] = model
    model = training.kept["reference"]
    loading.forget(model)
    return model


def policy(training: Training, batch: Batch) -> torch.Tensor:
    return of_row(training.engine.outputs(unlabelled(batch)), batch)


def before(training: Training, batch: Batch) -> torch.Tensor:
    """What the reference says of the same."""
    with torch.no_grad():
        return of_row(reference(training)(**unlabelled(batch)), batch)


def dpo(training: Training, shares: Shares) -> torch.Tensor:
    """Two forwards, one backward."""
    ((_, chosen),) = shares
    other = rejected(chosen)
    margin = policy(training, chosen) - policy(training, other)
    return -functional.logsigmoid(BETA * (margin - before(training, chosen) + before(training, other))).mean()


def dpo_lora(training: Training, shares: Shares) -> torch.Tensor:
    """The reference is the model itself without its adapter."""
    ((_, chosen),) = shares
    other = rejected(chosen)
    margin = policy(training, chosen) - policy(training, other)
    with torch.no_grad(), training.model.disable_adapter():
        apart = policy(training, chosen) - policy(training, other)
    return -functional.logsigmoid(BETA * (margin - apart)).mean()


def kto(training: Training, shares: Shares) -> torch.Tensor:
    """A row by itself; another answer, without gradients, says how far the policy has gone."""
    ((_, batch),) = shares
    other = rejected(batch)
    with torch.no_grad():
        gone = (policy(training, other) - before(training, other)).clamp(min=0).mean()
    return 1 - functional.sigmoid(BETA * (policy(training, batch) - before(training, batch) - gone)).mean()


def reward(training: Training, shares: Shares) -> torch.Tensor:
    """The last token's first logit is the reward of a row."""
    ((_, chosen),) = shares
    scores = [
        training.engine.outputs(unlabelled(batch)).logits[:, -1, 0] for batch in (chosen, rejected(chosen))
    ]
    return -functional.logsigmoid(scores[0] - scores[1]).mean()


def grpo(training: Training, shares: Shares) -> torch.Tensor:
    """Two answers to a prompt, what they are worth against each other, and a reference."""
    ((_, batch),) = shares
    losses = []
    for answer, worth in ((batch, 1.0), (rejected(batch), -1.0)):
        with torch.no_grad():
            old = log_probabilities(training.engine.outputs(unlabelled(answer)), answer)
            kept = log_probabilities(reference(training)(**unlabelled(answer)), answer)
        now = log_probabilities(training.engine.outputs(unlabelled(answer)), answer)
        ratio, apart = (now - old).exp(), kept - now
        losses.append((-worth * ratio.clamp(0.8, 1.2) + BETA * (apart.exp() - apart - 1)).mean())
    return torch.stack(losses).mean()


def distillation(training: Training, shares: Shares) -> torch.Tensor:
    ((_, batch),) = shares
    teacher = reference(training)
    with torch.no_grad():
        taught = (teacher(**unlabelled(batch)).logits / TEMPERATURE).log_softmax(-1)
    learnt = training.engine.outputs(unlabelled(batch)).logits.log_softmax(-1)
    return functional.kl_div(learnt, taught, log_target=True, reduction="batchmean")


# --- embeddings ---------------------------------------------------------------------------------------


def embedding(training: Training, batch: Batch) -> torch.Tensor:
    """A vector of length one for a row, from the last token's hidden states."""
    outputs = training.engine.outputs({**unlabelled(batch), "output_hidden_states": True})
    return functional.normalize(outputs.hidden_states[-1][0, -1], dim=0)


def pairs(shares: Shares) -> list[Batch]:
    """Two queries, then the answers to them."""
    ((_, batch),) = shares
    other = rejected(batch)
    return [batch, other, shorter(batch), shorter(other)]


def shorter(batch: Batch) -> Batch:
    """Without its last token."""
    shape = batch["input_ids"].shape
    return {name: value[:, :-1] if value.shape == shape else value for name, value in batch.items()}


def apart(vectors: list[torch.Tensor]) -> torch.Tensor:
    """How badly each query finds its answer."""
    queries, answers = torch.stack(vectors[:2]), torch.stack(vectors[2:])
    return functional.cross_entropy(queries @ answers.T / TEMPERATURE, torch.arange(2))


def contrastive(training: Training, shares: Shares) -> torch.Tensor:
    """Four forwards, one backward."""
    return apart([embedding(training, batch) for batch in pairs(shares)])


def gradcache(training: Training, shares: Shares) -> torch.Tensor:
    """A micro-batch of the queries and one of the answers, each with the gradient of all its vectors.

    Both come of one batch, which the first of them sees without gradients beforehand.
    """
    key = ("vectors", training.rank)
    if key not in training.kept:
        batches = pairs(shares)
        with torch.no_grad():
            vectors = [embedding(training, batch).requires_grad_() for batch in batches]
        with torch.enable_grad():
            gradients = torch.autograd.grad(apart(vectors), vectors)
        training.kept[key] = [*zip(batches[2:], gradients[2:], strict=True)]
        todo = [*zip(batches[:2], gradients[:2], strict=True)]
    else:
        todo = training.kept.pop(key)
    surrogate = torch.stack([(embedding(training, batch) * grad).sum() for batch, grad in todo]).sum()
    return surrogate * training.cell.accumulation


OBJECTIVES: dict[str, Objective] = {
    "sft": sft,
    "summed": summed,
    "autocast": autocast(torch.bfloat16),
    "autocast_half": autocast(torch.float16),
    "offloaded": offloaded,
    "own_share": own_share,
    "gathered": gathered,
    "dpo": dpo,
    "dpo_lora": dpo_lora,
    "kto": kto,
    "reward": reward,
    "grpo": grpo,
    "distillation": distillation,
    "contrastive": contrastive,
    "gradcache": gradcache,
}
