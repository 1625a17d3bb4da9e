"""Tiny random checkpoints with everything a real one has: weights, tokenizer, processor, data.

The folder loads with ``from_pretrained`` like any download, and holds ``data/sft.jsonl`` and
``data/dpo.jsonl`` (ms-swift's message format) with their images, so that whole frameworks can train it.
"""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CORPUS = "hello world describe the image a cat user assistant system you are a helpful assistant"
PAD, END, TURN = "<|endoftext|>", "<|im_end|>", "<|im_start|>"
QWEN_TOKENS = (
    *(PAD, TURN, END, "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>"),
    *("<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}IMAGE{% elif 'text' in c %}{{ c['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# How the rows of ``data`` are written, in the words of LLaMA-Factory's dataset_info.json.
SHAREGPT = {
    "formatting": "sharegpt",
    "columns": {"messages": "messages", "images": "images"},
    "tags": {
        "role_tag": "role",
        "content_tag": "content",
        "user_tag": "user",
        "assistant_tag": "assistant",
    },
}
Ids = dict[str, int]  # token -> id


@dataclass(frozen=True)
class Kind:
    """What makes one model family: class names in transformers, configuration, processor files."""

    config: str
    model: str
    vision: dict[str, Any]
    top: Callable[[Ids], dict[str, Any]]
    preprocessor: dict[str, Any]
    image: str  # what stands for an image in the chat template
    text: dict[str, Any] = field(default_factory=dict)
    tokens: tuple[str, ...] = QWEN_TOKENS
    processor: dict[str, Any] = field(default_factory=dict)  # what it is told beside its parts


def qwen_ids(ids: Ids) -> dict[str, Any]:
    return {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }


# Image sides in the data are multiples of 28: 14 pixels a patch, 2 x 2 patches merged.
QWEN_PREPROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "min_pixels": 4 * 28 * 28,
    "max_pixels": 16 * 28 * 28,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48, 0.46, 0.41],
    "image_std": [0.27, 0.26, 0.28],
}
QWEN_VISION = {
    "depth": 2,
    "num_heads": 4,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
QWEN_TEXT = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


def build(kind: Kind, folder: Path) -> int:
    """Write the whole checkpoint; returns its number of parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = write_tokenizer(kind, folder)
    _write(folder / "preprocessor_config.json", kind.preprocessor)
    if kind.processor:
        _write(folder / "processor_config.json", kind.processor)
    write_data(folder / "data")
    return write_model(kind, ids, folder)


def write_tokenizer(kind: Kind, folder: Path) -> Ids:
    """A byte-level BPE tokenizer of some hundred words, in the files Qwen2's tokenizers read."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(kind.tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS] * 10, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    model = json.loads(tokenizer.to_str())["model"]
    ids: Ids = model["vocab"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    _write(folder / "vocab.json", ids)
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    chat = CHAT.replace("IMAGE", kind.image)
    _write(folder / "chat_template.json", {"chat_template": chat})
    _write(folder / "tokenizer_config.json", tokenizer_config(kind, ids, chat))
    return ids


def tokenizer_config(kind: Kind, ids: Ids, chat: str) -> dict[str, Any]:
    plain = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": {str(ids[token]): {"content": token, **plain} for token in kind.tokens},
        "additional_special_tokens": list(kind.tokens[1:]),
        "eos_token": END,
        "pad_token": PAD,
        "bos_token": None,
        "unk_token": None,
        "model_max_length": 4096,
        "chat_template": chat,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "errors": "replace",
        "split_special_tokens": False,
    }


def write_model(kind: Kind, ids: Ids, folder: Path) -> int:
    import torch
    import transformers

    text = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": len(ids) + 8,
        "max_position_embeddings": 4096,
        "bos_token_id": ids[PAD],
        "eos_token_id": ids[END],
        "pad_token_id": ids[PAD],
        "tie_word_embeddings": False,
        **kind.text,
    }
    config_class = getattr(transformers, kind.config)
    # Qwen's language settings moved from the top of the configuration into `text_config` in 4.52.
    nested = "text_config" in inspect.signature(config_class).parameters
    place = {"text_config": text} if nested else text
    torch.manual_seed(0)
    model = getattr(transformers, kind.model)(
        config_class(vision_config=kind.vision, **place, **kind.top(ids))
    )
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def write_data(folder: Path, images: int = 8, rows: int = 16) -> None:
    """Noise images of two sizes and rows of three lengths: no two ranks see the same batch."""
    from PIL import Image

    folder.mkdir(exist_ok=True)
    chance = random.Random(0)
    paths = []
    for number in range(images):
        size = (84 + 28 * (number % 2), 84)
        picture = Image.frombytes("RGB", size, chance.randbytes(3 * size[0] * size[1]))
        picture.save(folder / f"{number}.png")
        paths.append(str((folder / f"{number}.png").absolute()))
    sft = []
    for number in range(rows):
        user = {"role": "user", "content": "<image>describe the image"}
        answer = {"role": "assistant", "content": "a cat " * (1 + number % 3)}
        sft.append({"messages": [user, answer], "images": [paths[number % images]]})
    _write_lines(folder / "sft.jsonl", sft)
    _write_lines(folder / "dpo.jsonl", [{**row, "rejected_response": "hello world"} for row in sft])


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
