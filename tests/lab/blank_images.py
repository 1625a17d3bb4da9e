"""Does a tower take the blank image made for it? Of families of which no consistent model is made by rule.

    python -m tests.lab.blank_images

runs inside a stack and prints, for each, the shape of the features that the language model would get.
"""

from __future__ import annotations

import importlib
from typing import Any

from tests.families._shared.sizes import DEEPSEEK, TEXT, VISION

SAM = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_dim": 64},
    **{"output_channels": 16, "patch_size": 16, "global_attn_indexes": [1]},
}


def kimi_k25(tf: Any) -> Any:
    heads = {
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
    }
    config = tf.Kimi_K25Config(
        vision_config={**VISION, "patch_size": 14, "pos_emb_height": 4, "pos_emb_width": 4},
        text_config={"model_type": "deepseek_v3", **TEXT, **DEEPSEEK, **heads},
        projection_hidden_size=32,
    )
    return tf.Kimi_K25ForConditionalGeneration(config)


def deepseek_vl_hybrid(tf: Any) -> Any:
    config = tf.DeepseekVLHybridConfig(
        text_config={"model_type": "llama", **TEXT},
        vision_config={"model_type": "siglip_vision_model", **VISION, "image_size": 32, "patch_size": 16},
        high_res_vision_config={"model_type": "sam_vision_model", **SAM, "image_size": 64, "window_size": 2},
    )
    return tf.DeepseekVLHybridForConditionalGeneration(config)


def unlimited_ocr(tf: Any) -> Any:
    sam = {**SAM, "image_size": 1024, "downsample_channels": [32, 64]}
    config = tf.UnlimitedOcrConfig(
        vision_config={"sam_config": sam, "encoder_config": {**VISION, "hidden_size": 64}},
        text_config={**TEXT, **DEEPSEEK},
    )
    return tf.UnlimitedOcrForConditionalGeneration(config)


def muse_glimmer(tf: Any) -> Any:
    config = tf.MuseGlimmerConfig(out_hidden_size=128)
    places = {"patch_size": 14, "pos_emb_height": 4, "pos_emb_width": 4, "max_position_embeddings": 16}
    for part, said in ((config.vision_config, {**VISION, **places}), (config.text_config, TEXT)):
        for name, value in said.items():
            setattr(part, name, value)
        if getattr(part, "layer_types", None):
            part.layer_types = part.layer_types[: part.num_hidden_layers]
    return tf.MuseGlimmerForConditionalGeneration(config)


FAMILIES = (kimi_k25, deepseek_vl_hybrid, unlimited_ocr, muse_glimmer)


def main() -> None:
    import torch
    import transformers

    blank = importlib.import_module("vlmpatch.patches._shared.blank_image")
    for family in FAMILIES:
        try:
            model = family(transformers).model
            inputs = blank.blank_inputs(model, model.get_image_features, torch.float32, "cpu")
            found = blank.features(model.get_image_features(**inputs))
            print(f"{family.__name__}: {tuple(found[0].shape)}")
        except Exception as error:
            print(f"{family.__name__}: {type(error).__name__}: {str(error)[:200]}")


if __name__ == "__main__":
    main()
