"""Aria as its repository makes it: a tower, a projector, experts; and rows as its script reads them."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.families._shared import files
from tests.families._shared.sizes import TEXT, VISION
from tests.families.qwen2_vl import KIND as QWEN2_VL

SEEN = "<|img|>"
TOKENS = (files.PAD, files.TURN, files.END, SEEN, "<fim_prefix>", "<fim_suffix>")
SIDE, PATCH = 980, 70  # it knows images of this side, and asks for 256 tokens of each
EXPERTS = {"moe_num_experts": 4, "moe_topk": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 1}


def main(made: Path, folder: Path) -> None:
    sys.path.insert(0, os.environ["REPOSITORY"])
    model(folder / "aria-tiny")
    rows(made / "data", folder / "rows")


def model(folder: Path) -> None:
    import torch

    folder.mkdir()
    known = files.write_tokenizer(dataclasses.replace(QWEN2_VL, tokens=TOKENS, image=SEEN), folder)
    aria = importlib.import_module("aria.model")
    vision = {**VISION, "image_size": SIDE, "patch_size": PATCH, "model_type": "aria_vision_model"}
    text = {**TEXT, **EXPERTS, "vocab_size": len(known), "model_type": "aria_moe_lm"}
    config = aria.AriaConfig(
        vision_config=vision,
        text_config=text,
        projector_patch_to_query_dict={(SIDE // PATCH) ** 2: 256},
        image_token_index=known[SEEN],
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    made = aria.AriaForConditionalGeneration(config)
    for parameter in made.parameters():
        if parameter.dim() > 1:  # some of them its code leaves as it finds them
            torch.nn.init.normal_(parameter, std=0.05)
    made.save_pretrained(folder)


def rows(images: Path, folder: Path) -> None:
    """The rows that every program has, with a turn's parts apart."""
    shutil.copytree(images, folder, ignore=shutil.ignore_patterns("[!0-9]*"))
    lines = [json.dumps(row(said)) + "\n" for said in json.loads((images / "mixed.json").read_text())]
    (folder / "train.jsonl").write_text("".join(lines))


def row(said: dict[str, Any]) -> dict[str, Any]:
    asked, answered = (turn["value"].removeprefix("<image>\n") for turn in said["conversations"])
    seen = [{"type": "image", "text": None}] if "image" in said else []
    turns = [
        {"role": "user", "content": [*seen, {"type": "text", "text": asked}]},
        {"role": "assistant", "content": [{"type": "text", "text": answered}]},
    ]
    return {"messages": turns, "images": [said["image"]] if seen else None, "video": None}


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
