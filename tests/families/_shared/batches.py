"""Weights, and batches ready to be fed: all that a cell needs of a family.

``batches.pt`` holds lists of tensors as a processor would have made them, which works on every transformers
that has the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.families._shared.sizes import IMAGE


def pixels(*shape: int, **more: list[Any]) -> Callable[[], dict[str, Any]]:
    """What draws the image of a batch: ``pixel_values`` of ``shape``, and what else the model asks of it."""

    def images() -> dict[str, Any]:
        import torch

        return {
            "pixel_values": torch.randn(*shape),
            **{key: torch.tensor(said) for key, said in more.items()},
        }

    return images


def write(
    model: Any, folder: Path, images: Callable[[], dict[str, Any]], pieces: int, types: str = ""
) -> int:
    """Save ``model`` and eight batches of one row with one image of ``pieces`` tokens each."""

    def drawn() -> list[dict[str, Any]]:
        return [_row(number, images, pieces, types) for number in range(8)]

    return save(model, folder, drawn)


def _row(number: int, images: Callable[[], dict[str, Any]], pieces: int, types: str) -> dict[str, Any]:
    import torch

    before, after = torch.randint(10, 100, (1, 5)), torch.randint(10, 100, (1, 6 + 2 * (number % 3)))
    ids = torch.cat([before, torch.full((1, pieces), IMAGE), after], dim=1)
    is_image = ids == IMAGE
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **images()}
    batch["labels"] = ids.masked_fill(is_image, -100)
    if types:
        batch[types] = is_image.long()
    return batch


def save(model: Any, folder: Path, drawn: Callable[[], list[dict[str, Any]]]) -> int:
    """Save ``model`` and the rows it is trained on, which are drawn by a seed of their own.

    Returns:
        Its number of parameters.
    """
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    for parameter in model.parameters():
        if not parameter.any():  # gates and layer scales that start at zero would hide their gradients
            torch.nn.init.normal_(parameter, std=0.02)
    model.save_pretrained(folder)
    torch.save(drawn(), folder / "batches.pt")
    config = json.loads((folder / "config.json").read_text())
    config.setdefault("architectures", [type(model).__name__])
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return sum(parameter.numel() for parameter in model.parameters())
