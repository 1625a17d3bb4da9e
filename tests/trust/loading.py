"""A program that imports vlmpatch, and whose data come from workers started in each way there is."""

from __future__ import annotations

import inspect
from typing import Any

import vlmpatch


class Seen:
    """Each sample is what a worker sees of a patch: its state, and what it changed."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, _number: int) -> tuple[str, bool]:
        import torch.utils.checkpoint

        checkpoint: Any = torch.utils.checkpoint.checkpoint
        default = inspect.signature(inspect.unwrap(checkpoint)).parameters["use_reentrant"].default
        return vlmpatch.status()["torch-checkpoint-default"].state.value, default is False


def main() -> None:
    import torch.utils.data

    for way in ("fork", "spawn", "forkserver"):
        loader: Any = torch.utils.data.DataLoader(
            Seen(), batch_size=None, num_workers=2, multiprocessing_context=way
        )
        print(way, *(f"{state} {default}" for state, default in loader), sep=", ")


if __name__ == "__main__":
    main()
