"""Emu3 as its repository makes it, whose images are words, and rows of such as its script reads them."""

from __future__ import annotations

import base64
import importlib
import itertools
import json
import os
import random
import sys
from pathlib import Path

from tests.families._shared.sizes import TEXT
from tests.shipped.make import SAID

FIRST = 151_643  # of its special tokens; a lesser number is a piece of text
EXTRAS = 3 + 205  # before those of images
SEEN = 64  # words of which images are made
MARKS = ("<|image token|>", "<|image start|>", "<|image end|>")
LONGEST = 128
ROWS = 12


def main(made: Path, folder: Path) -> None:
    sys.path.insert(0, os.environ["REPOSITORY"])
    model(folder / "emu3-tiny")
    rows(folder / "rows")


def model(folder: Path) -> None:
    import torch

    folder.mkdir()
    pieces = itertools.chain.from_iterable(itertools.product(range(256), repeat=size) for size in (1, 2, 3))
    ranks = itertools.islice(enumerate(map(bytes, pieces)), FIRST)
    lines = (f"{base64.b64encode(piece).decode()} {rank}\n" for rank, piece in ranks)
    (folder / "emu3.tiktoken").write_text("".join(lines))
    seen = (f"<|visual token {number:06d}|>" for number in range(SEEN))
    (folder / "emu3_vision_tokens.txt").write_text("\n".join((*MARKS, *seen)))
    emu3 = importlib.import_module("emu3.mllm")
    vocabulary = FIRST + EXTRAS + len(MARKS) + SEEN
    said = {**TEXT, "vocab_size": vocabulary, "max_position_embeddings": LONGEST, "attention_dropout": 0.0}
    torch.manual_seed(0)
    emu3.Emu3ForCausalLM(emu3.Emu3Config(**said)).save_pretrained(folder)


def rows(folder: Path) -> None:
    import torch

    folder.mkdir()
    chance = random.Random(0)
    names = [f"{number}.pth" for number in range(ROWS)]
    for number, name in enumerate(names):
        images = torch.tensor([[chance.randrange(SEEN) for _ in range(4)] for _ in range(3 + number % 2)])
        torch.save({"name": name, "images": images, "texts": SAID[number % len(SAID)]}, folder / name)
    (folder / "train.json").write_text(json.dumps({"prefix": str(folder), "path_list": names}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
