"""Qwen2 by itself, with the tokenizer of Qwen2-VL: projects that bring a tower of their own begin with it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from tests.families._shared.sizes import TEXT
from tests.shipped.make import NUMBERS, VOCABULARY

END = "<|endoftext|>"  # of a text and of a turn, as before its tuning to instructions
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")


def main(made: Path, folder: Path) -> None:
    import torch
    import transformers

    ids = {f"{name}_token_id": NUMBERS[END] for name in ("bos", "eos", "pad")}
    settings = {**TEXT, **ids, "vocab_size": VOCABULARY}
    torch.manual_seed(0)
    transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**settings)).save_pretrained(folder / "qwen2-tiny")
    for name in TOKENIZER:
        shutil.copy(made / "Qwen2-VL" / name, folder / "qwen2-tiny")
    path = folder / "qwen2-tiny" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token": END}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
