"""What one rank sees in one micro-batch: one function a kind, to batches with their shares of the loss.

One process without an engine is the measure; where a row says so it sees singly what a rank sees at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tests.axes.rows import STEPS
from vlmpatch_lab.cell import PATTERNS
from vlmpatch_lab.samples import IGNORED, KINDS, Batch

if TYPE_CHECKING:
    from tests.axes.training import Training

Shares = list[tuple[float, Batch]]
LENGTH = 10  # fewer tokens than any row of a text has
Data = Callable[["Training", int, int, int], Shares]


def number(training: Training, step: int, micro: int, rank: int) -> int:
    """A row that no other rank, micro-batch or step begins with, save where ranks train on one together."""
    first = rank - rank % training.row.together
    return ((step * training.cell.accumulation + micro) * training.cell.world + first) * 2


def images(training: Training, step: int, micro: int, rank: int) -> Shares:
    return [(1.0, training.samples.image(number(training, step, micro, rank)))]


def counted(batch: Batch) -> int:
    """The labels of a batch that count for its loss."""
    return int((batch["labels"][:, 1:] != IGNORED).sum())


def several(training: Training, step: int, micro: int, rank: int) -> list[Batch]:
    first = number(training, step, micro, rank)
    return [training.samples.image(first), training.samples.image(first + 1)]


def singly(rows: list[Batch]) -> Shares:
    """Each by itself, its share that of its labels."""
    total = sum(map(counted, rows))
    return [(counted(row) / total, row) for row in rows]


def packed(training: Training, step: int, micro: int, rank: int) -> Shares:
    """Two rows behind one another, told apart by positions that begin again."""
    rows = several(training, step, micro, rank)
    if training.measures:
        return singly(rows)
    labels = [torch.cat([row["labels"].new_full((1, 1), IGNORED), row["labels"][:, 1:]], 1) for row in rows]
    positions = [torch.arange(row["input_ids"].shape[1]) for row in rows]
    whole = {"input_ids": torch.cat([row["input_ids"] for row in rows], 1)}
    return [(1.0, {**whole, "labels": torch.cat(labels, 1), "position_ids": torch.cat(positions)[None]})]


def padded(training: Training, step: int, micro: int, rank: int) -> Shares:
    """Two rows of different lengths in one batch."""
    rows = several(training, step, micro, rank)
    return singly(rows) if training.measures else [(1.0, batch_of(rows))]


def batch_of(rows: list[Batch]) -> Batch:
    """Rows filled up on the right, with a mask that says so; pictures of those that have one, in turn."""
    longest = max(row["input_ids"].shape[1] for row in rows)
    filling = {"labels": IGNORED}

    def column(name: str) -> torch.Tensor:
        there = [row for row in rows if name in row]
        parts = [row[name] for row in there]
        if any(row[name].shape != row["input_ids"].shape for row in there):
            return torch.cat(parts)
        fill = filling.get(name, 0)
        return torch.cat(
            [torch.nn.functional.pad(part, (0, longest - part.shape[1]), value=fill) for part in parts]
        )

    return {name: column(name) for name in dict.fromkeys(name for row in rows for name in row)}


def videos(training: Training, step: int, micro: int, rank: int) -> Shares:
    """A video on one rank, an image on the other."""
    batch = training.samples.image(number(training, step, micro, rank))
    return [(1.0, as_video(training.model, batch) if (step + micro + rank) % 2 else batch)]


def mixed(training: Training, step: int, micro: int, rank: int) -> Shares:
    """A picture on both ranks, on one, or on none."""
    read = KINDS[PATTERNS["mixed"](step, micro, rank)]
    return [(1.0, read(training.samples, number(training, step, micro, rank)))]


def rehearsal(training: Training, step: int, micro: int, rank: int) -> Shares:
    """Beside each of these a text, and one backward for both."""
    text = training.samples.text(number(training, step, micro, rank) + 1)
    return [*mixed(training, step, micro, rank), (0.5, text)]


def videos_and_texts(training: Training, step: int, micro: int, rank: int) -> Shares:
    """An image, a video or neither."""
    first = number(training, step, micro, rank)
    turn = (step + micro + rank) % 3
    if turn == 2:
        return [(1.0, training.samples.text(first))]
    batch = training.samples.image(first)
    return [(1.0, as_video(training.model, batch) if turn else batch)]


def rows_with_and_without(training: Training, step: int, micro: int, rank: int) -> Shares:
    """A picture in one row of a batch and none in the other; now and then in neither."""
    first = number(training, step, micro, rank)
    read = KINDS["text" if (step + micro + rank) % 3 == 2 else "image"]
    rows = [read(training.samples, first), training.samples.text(first + 1)]
    return singly(rows) if training.measures else [(1.0, batch_of(rows))]


def as_video(model: Any, batch: Batch) -> Batch:
    """The same picture as a video of one moment."""
    names = {"pixel_values": "pixel_values_videos", "image_grid_thw": "video_grid_thw"}
    config, made = model.config, {names.get(name, name): value for name, value in batch.items()}
    for name in ("input_ids", "labels"):
        made[name] = made[name].masked_fill(made[name] == config.image_token_id, config.video_token_id)
    if "mm_token_type_ids" in made:
        made["mm_token_type_ids"] = made["mm_token_type_ids"] * 2
    return made


def empty(training: Training, step: int, micro: int, rank: int) -> Shares:
    """No label counts on one rank in the second step."""
    batch = training.samples.image(number(training, step, micro, rank))
    if step == 1 and rank == 1:
        batch["labels"] = torch.full_like(batch["labels"], IGNORED)
    return [(1.0, batch)]


def uneven(training: Training, step: int, micro: int, rank: int) -> Shares:
    """Two rows a rank, and of the last ones rank 1 has but one."""
    rows = several(training, step, micro, rank)
    return [(1.0, batch_of(rows[:1] if step == STEPS - 1 and rank else rows))]


def even(training: Training, step: int, micro: int, rank: int) -> Shares:
    """Rows of one length: DeepSpeed's experts exchange as many tokens on every rank."""
    row = training.samples.image(number(training, step, micro, rank))
    return [(1.0, {name: value[:, :LENGTH] for name, value in row.items()})]


def sliced(training: Training, step: int, micro: int, rank: int) -> Shares:
    """Of one row the part that is this rank's, with the labels of what comes next."""
    row = training.samples.image(number(training, step, micro, rank))
    if training.measures:
        return [(1.0, row)]
    length = row["input_ids"].shape[1]
    missing = -length % training.row.together
    tokens = torch.nn.functional.pad(row["input_ids"], (0, missing))
    labels = torch.nn.functional.pad(row["labels"][:, 1:], (0, missing + 1), value=IGNORED)
    whole = {
        "input_ids": tokens,
        "shift_labels": labels,
        "position_ids": torch.arange(length + missing)[None],
    }
    parts = {name: value.chunk(training.row.together, 1)[rank] for name, value in whole.items()}
    return [(1.0, {**parts, "counted": (labels != IGNORED).sum()})]


DATA: dict[str, Data] = {
    "images": images,
    "packed": packed,
    "padded": padded,
    "videos": videos,
    "mixed": mixed,
    "rehearsal": rehearsal,
    "videos_and_texts": videos_and_texts,
    "rows_with_and_without": rows_with_and_without,
    "empty": empty,
    "uneven": uneven,
    "even": even,
    "sliced": sliced,
}
