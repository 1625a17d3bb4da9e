"""Queries and what answers them, each a text or an image, as mmE5 loads them from a disk."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.shipped.make import SAID
from tests.shipped.models import mllama

ROWS = 12
ASKED = "<|image_1|>\ndescribe the image"


def main(made: Path, folder: Path) -> None:
    from datasets import Dataset

    mllama.main(folder)
    rows = [row(number) for number in range(ROWS)]
    Dataset.from_list(rows).save_to_disk(str(folder / "pairs" / "mixed"))


def row(number: int) -> dict[str, str]:
    """A text, then an image, then a text that is looked for with a text."""
    said = " ".join([SAID[number % 4]] * (1 + number % 3))
    seen, other = (ASKED, f"{number}.png"), (said, "")
    query, answer = [(seen, other), (other, seen), (other, ("hello you", ""))][number % 3]
    pair = {"qry": query[0], "qry_image_path": query[1], "pos_text": answer[0], "pos_image_path": answer[1]}
    return {**pair, "neg_text": repr([SAID[(number + 1) % 4]]), "neg_image_path": repr([""])}


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
