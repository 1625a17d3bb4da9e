"""ColQwen2.5 as ColPali's script for it begins: Qwen2.5-VL with a projection of its own, saved whole."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path

FILES = ("tokenizer", "vocab.json", "merges.txt", "preprocessor", "video_preprocessor", "chat_template")


def main(made: Path, folder: Path) -> None:
    import torch

    sys.path.insert(0, os.environ["REPOSITORY"])
    models = importlib.import_module("colpali_engine.models")
    torch.manual_seed(0)
    models.ColQwen2_5.from_pretrained(made / "Qwen2.5-VL").save_pretrained(folder / "colqwen-tiny")
    for path in (made / "Qwen2.5-VL").iterdir():
        if path.name.startswith(FILES):
            shutil.copy(path, folder / "colqwen-tiny")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
