"""Pairs of answers to an image, with what a reference model says of them, as RLAIF-V keeps them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.shipped.make import SAID

ROWS = 12
LONGEST = 256  # tokens, of which each has a number


def main(made: Path, folder: Path) -> None:
    from datasets import Dataset, Image

    (folder / "pairs").mkdir()
    rows = Dataset.from_list([row(made / "data", number) for number in range(ROWS)])
    rows.cast_column("image", Image()).to_parquet(str(folder / "pairs" / "withlogp-000.parquet"))


def row(images: Path, number: int) -> dict[str, object]:
    said = " ".join([SAID[number % 4]] * (1 + number % 3))
    of_one = (-8.0 - number % 3, -2.0, [-2.0] * LONGEST)
    of_other = (-9.0 + number % 2, -2.0, [-2.0] * LONGEST)
    origin = {"origin_dataset": "made", "origin_split": "{}", "idx": number, "image_path": f"{number}.png"}
    return {
        "image": {"bytes": (images / f"{number}.png").read_bytes(), "path": None},
        "question": "describe the image",
        "chosen": said,
        "rejected": "hello",
        "logps": json.dumps([*of_one, *of_other]),
        **origin,
    }


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
