"""Lays out a tiny MiniCPM-V: remote code, random weights, tokenizer, and data to train on.

    python -m tests.standin.make DIR

``DIR/model`` is a checkpoint folder for ``trust_remote_code``, ``DIR/finetune`` the script, ``DIR/*.json``
the data in the layout of MiniCPM-V's own. ``VLMPATCH_MINICPMV_CODE`` and ``VLMPATCH_MINICPMV_FINETUNE``
name folders that hold the real remote code and the real script; they are used in place of the stand-in's.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SPECIALS = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>", "<image>", "</image>", "<slice>", "</slice>"),
    *("<image_id>", "</image_id>", "<ref>", "</ref>", "<box>", "</box>", "<quad>", "</quad>"),
]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG: dict[str, Any] = {
    "architectures": ["MiniCPMV"],
    "auto_map": {
        "AutoConfig": "configuration_minicpm.MiniCPMVConfig",
        "AutoModel": "modeling_minicpmv.MiniCPMV",
        "AutoModelForCausalLM": "modeling_minicpmv.MiniCPMV",
    },
    "model_type": "minicpmv",
    "version": 2.6,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "query_num": 4,
    "image_size": 448,
    "drop_vision_last_layer": True,
    "vision_batch_size": 2,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "slice_config": {"max_slice_nums": 9, "patch_size": 14, "scale_resolution": 56, "model_type": "minicpmv"},
    "vision_config": {
        "hidden_size": 32,
        "image_size": 980,
        "intermediate_size": 48,
        "model_type": "siglip",
        "num_attention_heads": 2,
        "num_hidden_layers": 3,
        "patch_size": 14,
    },
}
PREPROCESSOR = {
    "image_processor_type": "MiniCPMVImageProcessor",
    "auto_map": {
        "AutoProcessor": "processing_minicpmv.MiniCPMVProcessor",
        "AutoImageProcessor": "image_processing_minicpmv.MiniCPMVImageProcessor",
    },
    "processor_class": "MiniCPMVProcessor",
    "max_slice_nums": 9,
    "scale_resolution": 56,
    "patch_size": 14,
    "use_image_id": True,
    "image_feature_size": 4,
    "im_start": "<image>",
    "im_end": "</image>",
    "slice_start": "<slice>",
    "slice_end": "</slice>",
    "unk": "<unk>",
    "im_id_start": "<image_id>",
    "im_id_end": "</image_id>",
    "slice_mode": True,
    "norm_mean": [0.5, 0.5, 0.5],
    "norm_std": [0.5, 0.5, 0.5],
    "version": 2.6,
}


def make(folder: Path) -> Path:
    """Everything a launch needs, in ``folder``."""
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    _copy(Path(os.environ.get("VLMPATCH_MINICPMV_CODE", HERE / "minicpmv26")), model)
    _copy(Path(os.environ.get("VLMPATCH_MINICPMV_FINETUNE", HERE / "finetune")), folder / "finetune")
    for name in ("ds_config_zero2.json", "ds_config_zero3.json"):
        shutil.copy(HERE / "finetune" / name, folder)  # a CPU needs torch's own Adam
    vocabulary = make_tokenizer(model)
    ids = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": vocabulary}
    _write(model / "config.json", CONFIG | ids)
    _write(model / "preprocessor_config.json", PREPROCESSOR)
    make_weights(model)
    make_data(folder)
    return folder


# What MiniCPM-o's remote code says where MiniCPM-V's says something else; its vision is the same.
OMNI = (
    ("MiniCPMV(", "MiniCPMO("),
    ("modeling_minicpmv.MiniCPMV", "modeling_minicpmo.MiniCPMO"),
    ('"architectures": [\n  "MiniCPMV"', '"architectures": [\n  "MiniCPMO"'),
    ("use_image_id=True,", "use_image_id=True, init_vision=True, init_audio=True, init_tts=True,"),
    ("self.slice_mode = True", "self.init_vision, self.init_audio, self.init_tts = True, False, False"),
)


def make_omni(vision: Path, folder: Path) -> Path:
    """The same as a MiniCPM-o, from what ``make`` has made in ``vision``."""
    shutil.copytree(vision, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("modules"))
    model = folder / "model"
    (model / "modeling_minicpmv.py").rename(model / "modeling_minicpmo.py")
    for path in (model / "config.json", *model.glob("*.py")):
        text = path.read_text()
        for old, new in OMNI:
            text = text.replace(old, new)
        path.write_text(text)
    return folder


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in source.glob("*.py"):
        # The real resampler names a CUDA device under ZeRO-3 whatever the machine has.
        (target / path.name).write_text(path.read_text().replace("device='cuda'", "device='cpu'"))


def make_tokenizer(model: Path) -> int:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIALS, initial_alphabet=alphabet)
    corpus = ["user", "assistant", "system", "describe a cat what is in the image"] * 20
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.save(str(model / "tokenizer.json"))
    bpe = json.loads(tokenizer.to_str())["model"]
    _write(model / "vocab.json", bpe["vocab"])
    merges = [m if isinstance(m, str) else " ".join(m) for m in bpe["merges"]]
    (model / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    added = {
        str(bpe["vocab"][token]): {
            "content": token,
            **dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False),
            "special": True,
        }
        for token in SPECIALS
    }
    config = {
        "tokenizer_class": "MiniCPMVTokenizerFast",
        "auto_map": {"AutoTokenizer": [None, "tokenization_minicpmv_fast.MiniCPMVTokenizerFast"]},
        "added_tokens_decoder": added,
        "additional_special_tokens": SPECIALS[4:],
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<unk>",
        "chat_template": TEMPLATE,
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
    }
    _write(model / "tokenizer_config.json", config)
    return len(bpe["vocab"])


def make_weights(model: Path) -> None:
    """Random weights, made by the remote code itself."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    importlib.import_module("vlmpatch")  # the code is older than the stack
    config = AutoConfig.from_pretrained(model, trust_remote_code=True)
    cls = get_class_from_dynamic_module("modeling_minicpmv.MiniCPMV", str(model))
    torch.manual_seed(0)
    network = cls(config)
    for name, value in network.state_dict().items():
        if value.is_floating_point() and "norm" not in name and "ln_" not in name:
            torch.nn.init.normal_(value, std=0.05 if value.dim() > 1 else 0.02)
    state = {name: value.contiguous() for name, value in network.state_dict().items()}
    save_file(state, model / "model.safetensors", metadata={"format": "pt"})


def make_data(folder: Path) -> None:
    """Two kinds: one slice an image, and more slices than fit one call of the tower."""
    from PIL import Image

    random.seed(0)
    sizes = {"few": [(56, 56)], "many": [(168, 112), (112, 168), (200, 90)]}
    rows: dict[str, list[dict[str, Any]]] = {}
    for kind, shapes in sizes.items():
        rows[kind] = []
        for index in range(16):
            path = folder / f"{kind}{index}.png"
            Image.effect_noise(shapes[index % len(shapes)], 40 + index).convert("RGB").save(path)
            talk = [
                {"role": "user", "content": "<image>\nwhat is in the image"},
                {"role": "assistant", "content": "a cat " * (1 + index % 3)},
            ]
            rows[kind].append({"id": str(index), "image": str(path), "conversations": talk})
    for kind in ("sft", "dpo"):  # the layout of ms-swift
        lines = [{"messages": row["conversations"], "images": [row["image"]]} for row in rows["many"]]
        rejected = {"rejected_response": "hello the image"} if kind == "dpo" else {}
        text = "".join(json.dumps({**line, **rejected}) + "\n" for line in lines)
        (folder / f"{kind}.jsonl").write_text(text)
    for kind, content in rows.items():
        _write(folder / f"{kind}.json", content)


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
