"""What draws the sound of a batch, and batches that have an image, a sound, or both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.families._shared.batches import save
from tests.families._shared.sizes import IMAGE

SOUND = IMAGE + 4  # the token that stands for a piece of a sound
AUDIO = {
    "num_mel_bins": 16,
    "d_model": 32,
    "encoder_layers": 1,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "max_source_positions": 64,
}  # of an encoder like Whisper's


class Kind(NamedTuple):
    """One of the things a row may have."""

    draw: Callable[[], dict[str, Any]]
    pieces: int  # tokens of it
    token: int  # that stands for each


def sounds(*shape: int, mask: str = "", frames: int = 0) -> Callable[[], dict[str, Any]]:
    """``input_features`` of ``shape``, and a ``mask`` that says that all ``frames`` of it are heard."""

    def drawn() -> dict[str, Any]:
        import torch

        heard = {mask: torch.ones(1, frames, dtype=torch.bool)} if mask else {}
        return {"input_features": torch.randn(*shape), **heard}

    return drawn


def write_several(model: Any, folder: Path, kinds: list[Kind], types: str = "") -> int:
    """Save ``model`` and nine batches of one row: with the first kind, with the second, with both, and again.

    ``types`` is the name of what numbers the tokens of each kind from 1, where the model wants that.
    """

    def drawn() -> list[dict[str, Any]]:
        return [_row(number, [kinds[:1], kinds[1:], kinds][number % 3], kinds, types) for number in range(9)]

    return save(model, folder, drawn)


def _row(number: int, here: list[Kind], kinds: list[Kind], types: str) -> dict[str, Any]:
    import torch

    pieces = [torch.randint(10, 100, (1, 5))]
    for kind in here:
        pieces += [
            torch.full((1, kind.pieces), kind.token),
            torch.randint(10, 100, (1, 4 + 2 * (number % 3))),
        ]
    ids = torch.cat(pieces, dim=1)
    numbered = sum(place * (ids == kind.token).long() for place, kind in enumerate(kinds, 1))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    batch["labels"] = ids.masked_fill(numbered > 0, -100)
    for kind in here:
        batch |= kind.draw()
    if types:
        batch[types] = numbered
    return batch
