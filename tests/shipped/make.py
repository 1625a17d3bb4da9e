"""Tiny checkpoints whose special tokens have the numbers of the real ones, and data for programs.

    python -m tests.shipped.make FOLDER

runs inside a stack. Public programs say numbers of tokens themselves (151655 is Qwen's image), and tell a
model by the name of its folder.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from tests.families._shared import files
from tests.families._shared.sizes import QWEN3_VISION, TEXT, VISION
from tests.families.qwen2_5_vl import KIND as QWEN2_5_VL
from tests.families.qwen2_vl import KIND as QWEN2_VL
from tests.standin import make as standin

VOCABULARY = 151_936
NUMBERS = {
    "assistant": 77_091,
    **{token: 151_643 + place for place, token in enumerate(files.QWEN_TOKENS)},
}
LLAMA = {"<unk>": 151_660, "<s>": 151_661, "</s>": 151_662}
MODELS = {"Qwen2-VL": QWEN2_VL, "Qwen2.5-VL": QWEN2_5_VL}
GEMMA3_MARKS = ("boi_token", "eoi_token", "image_token")
GEMMA3_TOKENS = (
    *(files.PAD, files.TURN, files.END, "<start_of_turn>", "<end_of_turn>"),
    *("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
)
GEMMA3 = files.Kind(
    config="Gemma3Config",
    model="Gemma3ForConditionalGeneration",
    vision={**VISION, "image_size": 896, "patch_size": 56, "vision_use_head": False},
    text={"head_dim": 16},
    top=lambda ids: {
        "mm_tokens_per_image": 256,
        **{f"{name}_index": ids[token] for name, token in zip(GEMMA3_MARKS, GEMMA3_TOKENS[-3:], strict=True)},
    },
    preprocessor={
        "image_processor_type": "Gemma3ImageProcessor",
        "processor_class": "Gemma3Processor",
        "size": {"height": 896, "width": 896},
        "image_seq_length": 256,
    },
    image="<start_of_image>",
    tokens=GEMMA3_TOKENS,
)
SMOLVLM_TOKENS = (
    *(files.PAD, files.TURN, files.END, "<image>", "<fake_token_around_image>", "<end_of_utterance>"),
    *("<global-img>", *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2))),
)
SMOLVLM = files.Kind(
    config="Idefics3Config",
    model="Idefics3ForConditionalGeneration",
    vision={**VISION, "image_size": 56, "patch_size": 14},
    text={"model_type": "llama"},
    top=lambda ids: {
        "image_token_id": ids["<image>"],
        "scale_factor": 2,
        "pad_token_id": ids[files.PAD],
    },
    preprocessor={
        "image_processor_type": "Idefics3ImageProcessor",
        "processor_class": "Idefics3Processor",
        "size": {"longest_edge": 112},
        "max_image_size": {"longest_edge": 56},
        "do_image_splitting": True,
        "do_pad": True,
    },
    processor={"processor_class": "Idefics3Processor", "image_seq_len": 4},
    image="<image>",
    tokens=SMOLVLM_TOKENS,
)
MANY = 128  # rows: a program keeps 100 for an evaluation, another takes none of a batch that is not whole
SAID = ("a cat", "hello world", "the image", "you are a helpful assistant")


def main(folder: Path) -> None:
    import transformers

    for name, kind in MODELS.items():
        made = folder / name
        if hasattr(transformers, kind.model):
            files.build(kind, made)
        else:  # older than the model: others have its tokenizer
            made.mkdir()
            files.write_tokenizer(kind, made)
        renumbered(made)
        if hasattr(transformers, kind.model):
            weights(made, kind)
    qwen3(folder / "qwen3-vl-tiny", folder / "Qwen2-VL")
    gemma3(folder / "gemma-3-tiny")
    if hasattr(transformers, SMOLVLM.model):
        files.build(SMOLVLM, folder / "smolvlm-tiny")
    if transformers.__version__ < "4.46":  # the script of MiniCPM-V asks for arguments that are gone since
        standin.make(folder / "MiniCPM-V")
    language(folder / "tinyllama", folder / "Qwen2-VL")
    tower(folder / "clip-tiny")
    internvl(folder / "internvl-tiny")
    rows = data(folder / "data")
    hub_data(folder / "data", rows)


def renumbered(folder: Path) -> None:
    """The tokenizer again, with ``NUMBERS`` for those that programs name by number."""
    path = folder / "tokenizer.json"
    pieces = _pieces(path, "assistant")
    tokenizer = json.loads(path.read_text())
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    for place in range(1, len(pieces)):
        whole, pair = "".join(pieces[: place + 1]), ["".join(pieces[:place]), pieces[place]]
        merges.append(" ".join(pair) if isinstance(merges[0], str) else pair)
        vocabulary.setdefault(whole, len(vocabulary))
    vocabulary = {token: NUMBERS.get(token, number) for token, number in vocabulary.items()}
    # What an untrained model writes is a text too: GRPO's rewards differ.
    said = set(vocabulary.values())
    vocabulary |= {f"w{number}": number for number in range(VOCABULARY) if number not in said}
    tokenizer["model"]["vocab"] = vocabulary
    for added in tokenizer["added_tokens"]:
        added["id"] = vocabulary[added["content"]]
    path.write_text(json.dumps(tokenizer))
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs, ""]))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["added_tokens_decoder"] = {
        str(vocabulary[each["content"]]): each for each in settings["added_tokens_decoder"].values()
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _pieces(path: Path, word: str) -> list[str]:
    """What the tokenizer at ``path`` makes of ``word``."""
    from tokenizers import Tokenizer

    found: list[str] = Tokenizer.from_file(str(path)).encode(word).tokens
    return found


def weights(folder: Path, kind: files.Kind) -> None:
    """The model again, over the whole vocabulary."""
    import torch
    import transformers

    settings = json.loads((folder / "config.json").read_text())
    ids = {token: NUMBERS[token] for token in files.QWEN_TOKENS}
    for part in (settings, settings.get("text_config", {})):
        part |= {"vocab_size": VOCABULARY, "tie_word_embeddings": True, **files.qwen_ids(ids)}
        part |= {
            "bos_token_id": ids[files.PAD],
            "eos_token_id": ids[files.END],
            "pad_token_id": ids[files.PAD],
        }
    torch.manual_seed(0)
    made = getattr(transformers, kind.model)(getattr(transformers, kind.config)(**settings))
    made.save_pretrained(folder)


def qwen3(folder: Path, beside: Path) -> None:
    """Qwen3-VL, with the tokenizer of its neighbour; only where transformers has it."""
    import shutil

    import torch
    import transformers

    if not hasattr(transformers, "Qwen3VLConfig"):
        return
    shutil.copytree(beside, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    ids = files.qwen_ids({token: NUMBERS[token] for token in files.QWEN_TOKENS})
    text = json.loads((beside / "config.json").read_text())
    text = {**text, **text.get("text_config", {})}
    kept = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    )
    tiny = {
        name: text[name] for name in (*kept, "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")
    }
    tiny |= {
        "head_dim": 16,
        "rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3], "mrope_interleaved": True},
    }
    vision = {**QWEN3_VISION, "patch_size": 16}
    config = transformers.Qwen3VLConfig(
        text_config=tiny, vision_config=vision, tie_word_embeddings=True, **ids
    )
    torch.manual_seed(0)
    transformers.Qwen3VLForConditionalGeneration(config).save_pretrained(folder)
    processing = {**files.QWEN_PREPROCESSOR, "patch_size": 16, "processor_class": "Qwen3VLProcessor"}
    processing |= {"size": {"shortest_edge": 32 * 32 * 4, "longest_edge": 32 * 32 * 16}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processing))
    video = {**processing, "video_processor_type": "Qwen3VLVideoProcessor"}
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video))


def gemma3(folder: Path) -> None:
    """Gemma 3, each of whose images is 256 tokens and 896 pixels wide; only where transformers has it."""
    import transformers

    if not hasattr(transformers, "Gemma3Config"):
        return
    files.build(GEMMA3, folder)
    path = folder / "tokenizer_config.json"
    marks = dict(zip(GEMMA3_MARKS, GEMMA3_TOKENS[-3:], strict=True))
    path.write_text(json.dumps({**json.loads(path.read_text()), "extra_special_tokens": marks}))


def language(folder: Path, beside: Path) -> None:
    """A model of text alone, on which LLaVA and its like put a tower, with the marks that Llama has."""
    import torch
    import transformers

    folder.mkdir()
    tokenizer = json.loads((beside / "tokenizer.json").read_text())
    said = {"special": True, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
    for token, number in LLAMA.items():
        del tokenizer["model"]["vocab"][f"w{number}"]
        tokenizer["model"]["vocab"][token] = number
        tokenizer["added_tokens"].append({"content": token, "id": number, **said})
    begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [begin, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [LLAMA["<s>"]], "tokens": ["<s>"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    marks = {"unk_token": "<unk>", "pad_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **marks}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(0)
    ids = {f"{name.removesuffix('_token')}_token_id": LLAMA[token] for name, token in marks.items()}
    ids.pop("unk_token_id")
    config = transformers.LlamaConfig(**{**TEXT, **ids, "vocab_size": VOCABULARY})
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def tower(folder: Path) -> None:
    """A vision tower by itself."""
    import torch
    import transformers

    side = {"height": 56, "width": 56}
    torch.manual_seed(0)
    config = transformers.CLIPVisionConfig(**VISION, image_size=56, patch_size=14)
    transformers.CLIPVisionModel(config).save_pretrained(folder)
    transformers.CLIPImageProcessor(size={"shortest_edge": 56}, crop_size=side).save_pretrained(folder)


def internvl(folder: Path) -> None:
    """InternVL as its repository saves it: a tower of its own in front of Qwen2. It adds its own tokens."""
    import torch
    import transformers
    from safetensors.torch import save_file

    folder.mkdir()
    known = files.write_tokenizer(QWEN2_VL, folder)
    torch.manual_seed(0)
    text = transformers.Qwen2Config(
        **{**TEXT, "vocab_size": len(known), "architectures": ["Qwen2ForCausalLM"]}
    )
    language = transformers.Qwen2ForCausalLM(text)
    vision = {**VISION, "image_size": 56, "patch_size": 14, "qkv_bias": True, "qk_normalization": False}
    settings = {
        "model_type": "internvl_chat",
        "architectures": ["InternVLChatModel"],
        "llm_config": text.to_dict(),
        "vision_config": {**vision, "norm_type": "layer_norm", "initializer_factor": 1.0},
        "force_image_size": 56,
        "downsample_ratio": 0.5,
        "select_layer": -1,
        "template": "internvl2_5",
        "ps_version": "v2",
    }
    (folder / "config.json").write_text(json.dumps(settings))
    found = {f"language_model.{name}": value.clone() for name, value in language.state_dict().items()}
    for name, shape in _of_tower(text.hidden_size).items():
        found[name] = 0.05 * torch.randn(shape) + (len(shape) == 1 and not name.endswith(".bias"))
    save_file(found, folder / "model.safetensors", {"format": "pt"})


def _of_tower(language: int) -> dict[str, tuple[int, ...]]:
    """The shapes of InternVL's tower, and of what leads from it to a model that is ``language`` wide."""
    wide, inner, merged = VISION["hidden_size"], VISION["intermediate_size"], 4 * VISION["hidden_size"]
    found: dict[str, tuple[int, ...]] = {
        "vision_model.embeddings.class_embedding": (1, 1, wide),
        "vision_model.embeddings.position_embedding": (1, 17, wide),
        "vision_model.embeddings.patch_embedding.weight": (wide, 3, 14, 14),
        "vision_model.embeddings.patch_embedding.bias": (wide,),
    }
    linear = {"mlp1.1": (language, merged), "mlp1.3": (language, language)}
    norms = {"mlp1.0": merged}
    for number in range(VISION["num_hidden_layers"]):
        layer = f"vision_model.encoder.layers.{number}"
        found |= {f"{layer}.ls1": (wide,), f"{layer}.ls2": (wide,)}
        norms |= {f"{layer}.norm1": wide, f"{layer}.norm2": wide}
        linear |= {f"{layer}.attn.qkv": (3 * wide, wide), f"{layer}.attn.proj": (wide, wide)}
        linear |= {f"{layer}.mlp.fc1": (inner, wide), f"{layer}.mlp.fc2": (wide, inner)}
    for name, shape in linear.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": (shape[0],)}
    for name, width in norms.items():
        found |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    return found


def data(folder: Path, rows: int = 12) -> list[dict[str, Any]]:
    """``images.json``, where each row has an image, ``text.json``, where none has one, and ``mixed.json``."""
    from PIL import Image

    folder.mkdir()
    chance = random.Random(0)
    made: list[dict[str, Any]] = []
    for number in range(rows):
        width = 84 + 28 * (number % 2)
        path = folder / f"{number}.png"
        Image.frombytes("RGB", (width, 84), chance.randbytes(3 * width * 84)).save(path)
        said = " ".join([SAID[number % 4]] * (1 + number % 3))
        turns = [{"from": "human", "value": "<image>\ndescribe the image"}, {"from": "gpt", "value": said}]
        made.append({"id": str(number), "image": path.name, "conversations": turns})
    (folder / "images.json").write_text(json.dumps(made))
    mixed = [without_image(row) if number % 2 else row for number, row in enumerate(made)]
    (folder / "mixed.json").write_text(json.dumps(mixed))
    (folder / "text.json").write_text(json.dumps([without_image(row) for row in made]))
    (folder / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in mixed))
    return made


def without_image(row: dict[str, Any]) -> dict[str, Any]:
    asked, answered = row["conversations"]
    return {"id": row["id"], "conversations": [{**asked, "value": "hello you"}, answered]}


def hub_data(folder: Path, rows: list[dict[str, Any]]) -> None:
    """The same as data sets of the hub, for SFT, DPO and GRPO; where ``datasets`` is installed."""
    try:
        from datasets import Dataset, Image, Sequence
    except ImportError:
        return
    images = [str(folder / row["image"]) for row in rows]
    asked = [
        {"role": "user", "content": [{"type": "image", "text": None}, {"type": "text", "text": "describe"}]}
    ] * len(rows)
    said = [
        {"role": "assistant", "content": [{"type": "text", "text": row["conversations"][1]["value"]}]}
        for row in rows
    ]
    worse = [{"role": "assistant", "content": [{"type": "text", "text": "hello"}]}] * len(rows)
    several = {"images": [[image] for image in images]}
    one = {
        "image": images,
        "problem": ["describe the image"] * len(rows),
        "solution": [row["conversations"][1]["value"] for row in rows],
    }
    empty = ("image_filename", "source", "options", "page", "model", "prompt", "answer_type")
    searched = {"query": one["problem"], "answer": one["solution"], "image": images}
    searched |= {name: [""] * len(rows) for name in empty}
    sets: dict[str, dict[str, Any]] = {
        "sft": {**several, "messages": list(map(list, zip(asked, said, strict=True)))},
        "dpo": {
            **several,
            "prompt": [[each] for each in asked],
            "chosen": [[each] for each in said],
            "rejected": [[each] for each in worse],
        },
        "grpo": one,
        "grpo-many": again(one),
        "vidore": again(searched),
    }
    for name, columns in sets.items():
        made = Dataset.from_dict(columns)
        column, kind = ("image", Image()) if "image" in columns else ("images", Sequence(Image()))
        made.cast_column(column, kind).to_parquet(
            str(folder / name / "data" / "train-00000-of-00001.parquet")
        )


def again(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The rows again and again, until they are ``MANY``."""
    return {
        name: [values[number % len(values)] for number in range(MANY)] for name, values in columns.items()
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
