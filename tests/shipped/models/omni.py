"""Qwen2.5-Omni's thinker, with what is looked for in Tevatron's words: an image or a text."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from tests.families._shared import files
from tests.families._shared.sizes import MROPE, TEXT
from tests.families.qwen2_vl import KIND as QWEN2_VL
from tests.shipped.make import SAID

SEEN, HEARD, FILM = "<|IMAGE|>", "<|AUDIO|>", "<|VIDEO|>"
MARKS = {
    "image_token": SEEN,
    "audio_token": HEARD,
    "video_token": FILM,
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
KIND = dataclasses.replace(
    QWEN2_VL,
    tokens=(files.PAD, files.TURN, files.END, *MARKS.values()),
    image=f"<|vision_bos|>{SEEN}<|vision_eos|>",
)
BANDS, ROWS = 16, 12
PROCESSING = {
    **files.QWEN_PREPROCESSOR,
    "processor_class": "Qwen2_5OmniProcessor",
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": BANDS,
}
VISION = {"depth": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 64, "out_hidden_size": 64}
AUDIO = {"num_mel_bins": BANDS, "d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 4}


def main(made: Path, folder: Path) -> None:
    thinker(folder / "omni-tiny")
    pairs(made / "data", folder / "pairs")


def thinker(folder: Path) -> None:
    import torch
    import transformers

    folder.mkdir()
    known = files.write_tokenizer(KIND, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "extra_special_tokens": MARKS}))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSING))
    ids = {f"{name}_token_id": known[MARKS[f"{name}_token"]] for name in ("image", "audio", "video")}
    config = transformers.Qwen2_5OmniThinkerConfig(
        text_config={**TEXT, "vocab_size": len(known), "rope_scaling": MROPE},
        vision_config={**VISION, "window_size": 56, "fullatt_block_indexes": [1]},
        audio_config={
            **AUDIO,
            "encoder_ffn_dim": 64,
            "output_dim": 64,
            "n_window": 8,
            "max_source_positions": 64,
        },
        **{name.replace("_id", "_index"): number for name, number in ids.items()},
        vision_start_token_id=known["<|vision_bos|>"],
        pad_token_id=known[files.PAD],
    )
    torch.manual_seed(0)
    transformers.Qwen2_5OmniThinkerForConditionalGeneration(config).save_pretrained(folder)


def pairs(images: Path, folder: Path) -> None:
    """Documents of which every second is an image, and questions that one answers and another does not."""
    from datasets import Dataset, Image

    folder.mkdir()
    documents = [document(images, number) for number in range(ROWS)]
    made = Dataset.from_list(documents).cast_column("image", Image())
    made.to_parquet(str(folder / "documents.parquet"))
    lines = [json.dumps(question(number)) + "\n" for number in range(ROWS)]
    (folder / "questions.jsonl").write_text("".join(lines))


def document(images: Path, number: int) -> dict[str, Any]:
    if number % 2:
        return {"docid": str(number), "text": SAID[number % 4], "image": None}
    return {"docid": str(number), "text": "", "image": str(images / f"{number}.png")}


def question(number: int) -> dict[str, Any]:
    asked = " ".join([SAID[number % 4]] * (1 + number % 3))
    answers = {"positive_document_ids": [str(number)], "negative_document_ids": [str((number + 2) % ROWS)]}
    return {"query_id": str(number), "query_text": asked, **answers}


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
