"""More tiny models: weights, and batches ready to be fed, for cells only.

The models of ``tiny.py`` carry tokenizer, processor and data, so that whole frameworks can train
them. These carry ``batches.pt`` instead: lists of tensors as a processor would have made them, which
is all a cell needs and works on every transformers that has the model.

``python -m tests.lab.tiny KIND FOLDER`` makes them too. Another model is one more function here.
"""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCABULARY = 128
IMAGE = 120  # the token that stands for a piece of an image
HERE = Path(__file__).parent
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
MROPE = {"rope_type": "default", "mrope_section": [2, 3, 3]}
QWEN3_VISION = {
    "depth": 2,
    "hidden_size": 32,
    "num_heads": 4,
    "intermediate_size": 64,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
QWEN_IDS = {
    "image_token_id": IMAGE,
    "video_token_id": IMAGE + 1,
    "vision_start_token_id": IMAGE + 2,
    "vision_end_token_id": IMAGE + 3,
}


def qwen3_vl(folder: Path) -> int:
    """Its vision tower has no input embeddings that a hook could sit on."""
    import transformers as tf

    text = {**TEXT, "head_dim": 16, "rope_scaling": {**MROPE, "mrope_interleaved": True}}
    config = tf.Qwen3VLConfig(text_config=text, vision_config=QWEN3_VISION, **QWEN_IDS)
    model = tf.Qwen3VLForConditionalGeneration(config)
    return write(
        model, folder, pixels(16, 3 * 2 * 16 * 16, image_grid_thw=[[1, 4, 4]]), 4, types="mm_token_type_ids"
    )


def llava(folder: Path) -> int:
    """CLIP, whose checkpointing is as old as transformers', and Llama."""
    import transformers as tf

    config = tf.LlavaConfig(
        vision_config=tf.CLIPVisionConfig(**VISION, image_size=28, patch_size=14, projection_dim=32),
        text_config=tf.LlamaConfig(**TEXT),
        image_token_index=IMAGE,
        image_seq_length=4,
        vision_feature_layer=-1,
    )

    return write(tf.LlavaForConditionalGeneration(config), folder, pixels(1, 3, 28, 28), 4)


def gemma3(folder: Path) -> int:
    import transformers as tf

    text = {**TEXT, "head_dim": 16, "sliding_window": 16, "layer_types": ["full_attention"] * 2}
    config = tf.Gemma3Config(
        text_config=text,
        vision_config={**VISION, "image_size": 56, "patch_size": 14, "vision_use_head": False},
        mm_tokens_per_image=4,
        image_token_index=IMAGE,
        boi_token_index=IMAGE + 1,
        eoi_token_index=IMAGE + 2,
    )

    return write(
        tf.Gemma3ForConditionalGeneration(config), folder, pixels(1, 3, 56, 56), 4, types="token_type_ids"
    )


def internvl(folder: Path) -> int:
    """InternVL as transformers has it."""
    import transformers as tf

    config = tf.InternVLConfig(
        vision_config={**VISION, "image_size": [56, 56], "patch_size": [14, 14]},
        text_config={**TEXT, "model_type": "qwen2"},
        image_token_id=IMAGE,
        image_seq_length=4,
    )

    return write(tf.InternVLForConditionalGeneration(config), folder, pixels(1, 3, 56, 56), 4)


def minicpmv4_6(folder: Path) -> int:
    """MiniCPM-V 4.6 as transformers has it: no remote code, one packed call of the vision tower."""
    import transformers as tf

    text = {**TEXT, "model_type": "qwen3_5_text", "head_dim": 16, "layer_types": ["full_attention"] * 2}
    config = tf.MiniCPMV4_6Config(
        vision_config={**VISION, "image_size": 128, "patch_size": 16},
        text_config=text,
        insert_layer_id=0,
        image_token_id=IMAGE,
        video_token_id=IMAGE + 1,
    )

    return write(
        tf.MiniCPMV4_6ForConditionalGeneration(config),
        folder,
        pixels(1, 3, 16, 16 * 64, target_sizes=[[8, 8]]),
        4,
    )


def qwen3_vl_moe(folder: Path) -> int:
    """One parameter for all experts; before transformers 5 a loop calls the activation once for each hit."""
    import transformers as tf

    text = {**TEXT, "head_dim": 16, "rope_scaling": {**MROPE, "mrope_interleaved": True}}
    text |= {"num_experts": 8, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
    config = tf.Qwen3VLMoeConfig(text_config=text, vision_config=QWEN3_VISION, **QWEN_IDS)
    model = tf.Qwen3VLMoeForConditionalGeneration(config)
    return write(
        model, folder, pixels(16, 3 * 2 * 16 * 16, image_grid_thw=[[1, 4, 4]]), 4, types="mm_token_type_ids"
    )


def qwen2_5_omni(folder: Path) -> int:
    """The thinker, which is what is trained: with an audio tower that images never reach."""
    import transformers as tf

    vision = {
        "depth": 2,
        "hidden_size": 32,
        "num_heads": 4,
        "intermediate_size": 64,
        "out_hidden_size": 64,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    }
    audio = {
        "num_mel_bins": 16,
        "d_model": 32,
        "encoder_layers": 1,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "output_dim": 64,
        "n_window": 8,
        "max_source_positions": 64,
    }
    config = tf.Qwen2_5OmniThinkerConfig(
        text_config={**TEXT, "rope_scaling": MROPE},
        vision_config=vision,
        audio_config=audio,
        image_token_index=IMAGE,
        video_token_index=IMAGE + 1,
        audio_token_index=IMAGE + 4,
    )
    for name in ("image", "video", "audio"):  # 4.57 reads both names
        setattr(config, f"{name}_token_id", getattr(config, f"{name}_token_index", IMAGE))
    config.vision_start_token_id = IMAGE + 2  # 5.23 reads it and has no place for it

    return write(
        tf.Qwen2_5OmniThinkerForConditionalGeneration(config),
        folder,
        pixels(16, 3 * 2 * 14 * 14, image_grid_thw=[[1, 4, 4]]),
        4,
    )


def qwen3_omni_moe(folder: Path) -> int:
    """The thinker again: before transformers 5 a module an expert."""
    import transformers as tf

    text = {**TEXT, "head_dim": 16, "rope_scaling": {**MROPE, "mrope_interleaved": True}}
    text |= {"num_experts": 8, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
    audio = {
        "num_mel_bins": 16,
        "d_model": 32,
        "encoder_layers": 1,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "output_dim": 64,
        "n_window": 8,
        "n_window_infer": 16,
        "downsample_hidden_size": 16,
        "max_source_positions": 64,
    }
    tokens = {name: QWEN_IDS[name] for name in ("image_token_id", "video_token_id")}
    config = tf.Qwen3OmniMoeThinkerConfig(
        text_config=text, vision_config=QWEN3_VISION, audio_config=audio, audio_token_id=IMAGE + 4, **tokens
    )
    config.vision_start_token_id = IMAGE + 2
    return write(
        tf.Qwen3OmniMoeThinkerForConditionalGeneration(config),
        folder,
        pixels(16, 3 * 2 * 16 * 16, image_grid_thw=[[1, 4, 4]]),
        4,
    )


def llava_next(folder: Path) -> int:
    """Tiles of a picture: here the whole of it and one tile, with a newline after each row."""
    import transformers as tf

    config = tf.LlavaNextConfig(
        vision_config=tf.CLIPVisionConfig(**VISION, image_size=28, patch_size=14, projection_dim=32),
        text_config=tf.LlamaConfig(**TEXT),
        image_token_index=IMAGE,
        image_seq_length=10,  # by which 4.45 tells rows that have a token for each piece
        image_grid_pinpoints=[[28, 28], [28, 56], [56, 28]],
    )

    return write(
        tf.LlavaNextForConditionalGeneration(config),
        folder,
        pixels(1, 2, 3, 28, 28, image_sizes=[[28, 28]]),
        10,
    )


def llava_onevision(folder: Path) -> int:
    import transformers as tf

    vision = {**VISION, "model_type": "siglip_vision_model", "image_size": 28, "patch_size": 14}
    config = tf.LlavaOnevisionConfig(
        vision_config={**vision, "vision_use_head": False},
        text_config={**TEXT, "model_type": "qwen2"},
        image_token_index=IMAGE,
        video_token_index=IMAGE + 1,
        image_grid_pinpoints=[[28, 28], [28, 56], [56, 28]],
    )

    return write(
        tf.LlavaOnevisionForConditionalGeneration(config),
        folder,
        pixels(1, 2, 3, 28, 28, image_sizes=[[28, 28]]),
        10,
    )


def paligemma(folder: Path) -> int:
    import transformers as tf

    vision = {**VISION, "model_type": "siglip_vision_model", "image_size": 28, "patch_size": 14}
    config = tf.PaliGemmaConfig(
        vision_config={**vision, "vision_use_head": False},
        text_config={**TEXT, "model_type": "gemma", "head_dim": 16},
        image_token_index=IMAGE,
        projection_dim=64,
        hidden_size=64,
    )

    return write(
        tf.PaliGemmaForConditionalGeneration(config), folder, pixels(1, 3, 28, 28), 4, types="token_type_ids"
    )


def idefics3(folder: Path) -> int:
    import transformers as tf

    return _idefics(folder, tf.Idefics3Config, tf.Idefics3ForConditionalGeneration)


def smolvlm(folder: Path) -> int:
    import transformers as tf

    return _idefics(folder, tf.SmolVLMConfig, tf.SmolVLMForConditionalGeneration)


def _idefics(folder: Path, configuration: Any, model: Any) -> int:
    import torch

    config = configuration(
        vision_config={**VISION, "image_size": 56, "patch_size": 14},
        text_config={**TEXT, "model_type": "llama"},
        image_token_id=IMAGE,
        scale_factor=2,
        pad_token_id=0,
    )

    def images() -> dict[str, Any]:
        mask = torch.ones(1, 1, 56, 56, dtype=torch.bool)
        return {"pixel_values": torch.randn(1, 1, 3, 56, 56), "pixel_attention_mask": mask}

    return write(model(config), folder, images, 4)


GLM_VISION = {
    "depth": 2,
    "hidden_size": 32,
    "num_heads": 4,
    "intermediate_size": 64,
    "out_hidden_size": 64,
    "image_size": 56,
}
GLM_IDS = {
    "image_token_id": IMAGE,
    "video_token_id": IMAGE + 1,
    "image_start_token_id": IMAGE + 2,
    "image_end_token_id": IMAGE + 3,
    "video_start_token_id": IMAGE + 4,
    "video_end_token_id": IMAGE + 5,
}
GLM_TEXT = {
    **TEXT,
    "rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3], "partial_rotary_factor": 1.0},
    "partial_rotary_factor": 1.0,
}


def glm4v(folder: Path) -> int:
    import transformers as tf

    config = tf.Glm4vConfig(text_config=GLM_TEXT, vision_config=GLM_VISION, **GLM_IDS)
    model = tf.Glm4vForConditionalGeneration(config)
    return write(
        model, folder, pixels(16, 3 * 2 * 14 * 14, image_grid_thw=[[1, 4, 4]]), 4, types="mm_token_type_ids"
    )


def ovis2(folder: Path) -> int:
    """Its visual embedding table is an ``nn.Embedding`` that multiplies by its weight."""
    import transformers as tf

    config = tf.Ovis2Config(
        vision_config={**VISION, "image_size": 28, "patch_size": 14, "vocab_size": 32},
        text_config={**TEXT, "model_type": "qwen2"},
        image_token_id=IMAGE,
        visual_indicator_token_ids=[IMAGE + 1, IMAGE + 2, IMAGE + 3, IMAGE + 4, IMAGE + 5],
        vocab_size=VOCABULARY,
        hidden_size=64,
    )

    return write(tf.Ovis2ForConditionalGeneration(config), folder, pixels(1, 3, 28, 28), 4)


def qwen3_moe(folder: Path) -> int:
    """No images: eight experts, of which a token sees one. Before transformers 5 each is a module."""
    import transformers as tf

    experts = {"num_experts": 8, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
    config = tf.Qwen3MoeConfig(**TEXT, **experts, head_dim=16, decoder_sparse_step=1, mlp_only_layers=[])
    return write(tf.Qwen3MoeForCausalLM(config), folder, dict, 0)


def qwen2_moe(folder: Path) -> int:
    """The same of a year before, with an expert that every token sees."""
    import transformers as tf

    experts = {"num_experts": 8, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
    experts |= {"shared_expert_intermediate_size": 32, "decoder_sparse_step": 1}
    return write(tf.Qwen2MoeForCausalLM(tf.Qwen2MoeConfig(**TEXT, **experts)), folder, dict, 0)


DEEPSEEK = {
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}


def deepseek_v3(folder: Path) -> int:
    """The first block dense; the others ask each expert whether a token came."""
    import transformers as tf

    ranks = {"q_lora_rank": 16, "kv_lora_rank": 16}
    ranks |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
    config = tf.DeepseekV3Config(**{**TEXT, "num_key_value_heads": 4}, **ranks, **DEEPSEEK)
    return write(tf.DeepseekV3ForCausalLM(config), folder, dict, 0)


def glm4v_moe(folder: Path) -> int:
    """GLM-4.5V: images, and DeepSeek-V3's experts."""
    import transformers as tf

    text = {**GLM_TEXT, **DEEPSEEK, "head_dim": 16}
    config = tf.Glm4vMoeConfig(text_config=text, vision_config=GLM_VISION, **GLM_IDS)
    model = tf.Glm4vMoeForConditionalGeneration(config)
    return write(
        model, folder, pixels(16, 3 * 2 * 14 * 14, image_grid_thw=[[1, 4, 4]]), 4, types="mm_token_type_ids"
    )


def mllama(folder: Path) -> int:
    """Its text model looks at images in layers of their own, which a batch without images leaves out."""
    import transformers as tf

    vision: dict[str, Any] = {**VISION, "attention_heads": 4, "num_global_layers": 1, "vision_output_dim": 64}
    vision |= {"image_size": 28, "patch_size": 14, "max_num_tiles": 2, "intermediate_layers_indices": [0]}
    vision |= {"supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]]}
    text = {**TEXT, "num_hidden_layers": 3, "cross_attention_layers": [1]}
    text |= {"rope_scaling": {"rope_type": "default"}}
    config = tf.MllamaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE)

    return write(
        tf.MllamaForConditionalGeneration(config),
        folder,
        pixels(1, 1, 2, 3, 28, 28, aspect_ratio_ids=[[2]], aspect_ratio_mask=[[[1, 1]]]),
        1,
    )


def internvl_repo(folder: Path) -> int:
    """Repository code in InternVL's manner: its vision tower calls torch's checkpoint itself."""
    return _with_own_code(folder, "internvl", "TinyInternVL", VISION, images=1, pieces=4)


def timm_repo(folder: Path) -> int:
    """Repository code in MiniCPM-V-2's manner: its vision tower is timm's, called once an image."""
    vision = {"img_size": 28, "patch_size": 14, "depth": 2, "embed_dim": 32, "num_heads": 4}
    return _with_own_code(folder, "timm", "TinyTimm", vision, images=2, pieces=8)


def _with_own_code(
    folder: Path, name: str, prefix: str, vision: dict[str, Any], images: int, pieces: int
) -> int:
    import torch

    package = f"tests.lab.{name}_repo"
    configuration = importlib.import_module(f"{package}.configuration_tiny_{name}")
    modeling = importlib.import_module(f"{package}.modeling_tiny_{name}")
    config = getattr(configuration, f"{prefix}Config")(text=TEXT, vision=vision, image_token=IMAGE)
    config.auto_map = {
        "AutoConfig": f"configuration_tiny_{name}.{prefix}Config",
        "AutoModel": f"modeling_tiny_{name}.{prefix}Model",
    }

    def pixels() -> dict[str, Any]:
        return {"pixel_values": torch.randn(images, 3, 28, 28)}

    size = write(getattr(modeling, f"{prefix}Model")(config), folder, pixels, pieces)
    for source in (HERE / f"{name}_repo").glob(f"*_tiny_{name}.py"):
        shutil.copy(source, folder)
    return size


def pixels(*shape: int, **more: list[Any]) -> Callable[[], dict[str, Any]]:
    """What draws the image of a batch: ``pixel_values`` of ``shape``, and what else the model asks of it."""

    def images() -> dict[str, Any]:
        import torch

        return {
            "pixel_values": torch.randn(*shape),
            **{key: torch.tensor(said) for key, said in more.items()},
        }

    return images


def write(
    model: Any, folder: Path, images: Callable[[], dict[str, Any]], pieces: int, types: str = ""
) -> int:
    """Save ``model`` and eight batches of one row with one image of ``pieces`` tokens each."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    for parameter in model.parameters():
        if not parameter.any():  # gates and layer scales that start at zero would hide their gradients
            torch.nn.init.normal_(parameter, std=0.02)
    model.save_pretrained(folder)
    batches = []
    for number in range(8):
        before, after = torch.randint(10, 100, (1, 5)), torch.randint(10, 100, (1, 6 + 2 * (number % 3)))
        ids = torch.cat([before, torch.full((1, pieces), IMAGE), after], dim=1)
        is_image = ids == IMAGE
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **images()}
        batch["labels"] = ids.masked_fill(is_image, -100)
        if types:
            batch[types] = is_image.long()
        batches.append(batch)
    torch.save(batches, folder / "batches.pt")
    config = json.loads((folder / "config.json").read_text())
    config.setdefault("architectures", [type(model).__name__])
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return sum(parameter.numel() for parameter in model.parameters())


ZOO: dict[str, Callable[[Path], int]] = {
    "qwen3_vl": qwen3_vl,
    "llava": llava,
    "gemma3": gemma3,
    "internvl": internvl,
    "minicpmv4_6": minicpmv4_6,
    "qwen3_vl_moe": qwen3_vl_moe,
    "qwen2_5_omni": qwen2_5_omni,
    "qwen3_omni_moe": qwen3_omni_moe,
    "llava_next": llava_next,
    "llava_onevision": llava_onevision,
    "paligemma": paligemma,
    "idefics3": idefics3,
    "smolvlm": smolvlm,
    "glm4v": glm4v,
    "ovis2": ovis2,
    "mllama": mllama,
    "qwen3_moe": qwen3_moe,
    "qwen2_moe": qwen2_moe,
    "deepseek_v3": deepseek_v3,
    "glm4v_moe": glm4v_moe,
    "internvl_repo": internvl_repo,
    "timm_repo": timm_repo,
}
