"""What single families need that no rule can know, by transformers' folder or by class: a table.

A class's own entry is added to its folder's sizes, and takes the place of its folder's inputs. A size that is
a dictionary belongs to that part of the configuration; where the class has no such part, it is said as it is.
Of the inputs a class gets those that its forward takes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tests.families._shared.sizes import IMAGE
from tests.lab.made_small.offered import LENGTH, ROWS
from tests.lab.made_small.sizes import PLAIN, STAGES

Drawn = Callable[[Any], Any]  # what a model with this configuration gets
BY_KIND = {
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {"sliding_attention": PLAIN, "full_attention": PLAIN},
}
DOTS3_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "vocab_size": 128,
    "num_hidden_layers": 2,
    "layer_types": ["indexed_attention", "sliding_attention"],
    "mlp_layer_types": ["dense", "sparse"],
    "rope_parameters": {"sliding_attention": PLAIN, "indexed_attention": PLAIN},
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "head_dim": 16,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 4,
    "per_layer_config": {},
}
DOTS3 = {
    "text_config": DOTS3_TEXT,
    "vision_config": {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "mlp_layer_types": ["dense", "sparse"],
        "num_local_experts": 4,
        "adapter_in_dim": 32,
        "adapter_out_dim": 64,
    },
    "audio_config": {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "adapter_input_size": 64,
        "adapter_out_dim": 64,
    },
}
ATOMS = {"hidden_size": 64, "num_attention_heads": 2, "head_dim": 32, "intermediate_size": 32}
EXPERTS = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
CODEC = {"num_filters": 4, "downsampling_ratios": [2, 2], "depths": [1, 1, 1]}
WAVES = {"patch_sizes": [4, 4], "hidden_sizes": [16, 32], "depths": [1, 1], "num_hidden_layers": 2}
SPARSE = {
    "layer_types": ["linear_attention", "indexed_attention"],
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 4,
    "indexer_compress_ratio": 2,
}
SEGMENTS = {
    "vision_config": {"output_channels": 64, "num_pos_feats": 32},
    "prompt_encoder_config": {
        "hidden_size": 64,
        "image_size": 56,
        "patch_size": 14,
        "image_embedding_size": 4,
    },
    "mask_decoder_config": {"hidden_size": 64, "vit_dim": 32},
}
VOCODER = {"upsample_initial_channel": 64, "unit_hifi_gan_vocab_size": 128}
WINDOWS = {
    "image_size": 32,
    "window_size": 4,
    "embed_dim": 16,
    "depths": [1, 1],
    "num_heads": [2, 4],
    "encoder_stride": 8,
}

MUSIC = {"text_encoder": {"model_type": "t5"}, "audio_encoder": {"model_type": "encodec"}}
CROSSED = {"is_decoder": True, "add_cross_attention": True}
DECODER = {"model_type": "gpt2", **CROSSED}
DBRX = {  # whole, for its parts refuse to be made again of what they say
    "d_model": 64,
    "n_heads": 4,
    "n_layers": 2,
    "vocab_size": 128,
    "attn_config": {"kv_n_heads": 2},
    "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
}
SIZES: dict[str, dict[str, Any]] = {
    "apertus1p5": {
        "text_config": {"vocab_size": 160, "rope_parameters": PLAIN},
        "vision_config": {"codebook_size": 16, "base_channels": 32, "channel_multiplier": [1, 1]},
        "audio_config": {
            "codebook_size": 16,
            **dict.fromkeys(("hidden_size", "codebook_dim", "decoder_hidden_size"), 32),
        },
        **{"image_token_id": IMAGE, "image_token_offset": 128, "audio_token_offset": 144},
    },
    "autoformer": {"label_length": 4},
    "bamba": {"mamba_chunk_size": 8},
    "BeitForSemanticSegmentation": {"num_hidden_layers": 4, "out_indices": STAGES},
    "Blip2ForImageTextRetrieval": {"qformer_config": {"use_qformer_text_input": True}},
    "blip_2": {"num_query_tokens": 4},
    "chmv2": {
        "backbone_config": {
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "out_indices": STAGES,
            "apply_layernorm": True,
            "return_class_token": True,
        },
        "post_process_channels": [8, 8, 16, 16],
        "fusion_hidden_size": 16,
        "head_hidden_size": 8,
        "number_output_channels": 16,
    },
    "clipseg": {"extract_layers": [0, 1]},
    "clvp": {
        "text_config": {"hidden_size": 128, "projection_dim": 128, "num_attention_heads": 2},
        "speech_config": {"hidden_size": 128, "projection_dim": 128, "num_attention_heads": 2},
    },
    "ClvpEncoder": {"hidden_size": 128, "projection_dim": 128, "num_attention_heads": 2},
    "cohere_compass": {"text_config": BY_KIND, **BY_KIND},
    "Data2VecVisionForSemanticSegmentation": {"num_hidden_layers": 4, "out_indices": STAGES},
    "DeepseekOcr2VisionModel": {"sam_config": {"downsample_channels": [32, 64]}},
    "depth_anything": {
        "backbone_config": {
            "num_hidden_layers": 4,
            "out_indices": STAGES,
            "image_size": 56,
            "patch_size": 14,
            "reshape_hidden_states": False,
        },
        "patch_size": 14,
        "reassemble_hidden_size": 64,
        "neck_hidden_sizes": [8, 8, 16, 16],
        "fusion_hidden_size": 16,
        "head_hidden_size": 8,
        "depth_estimation_type": "metric",  # no ReLU at its end
    },
    "depth_pro": {
        "patch_size": 16,
        "fusion_hidden_size": 16,
        "intermediate_hook_ids": [1, 0],
        "intermediate_feature_dims": [16, 16],
        "scaled_images_ratios": [0.5, 1.0],
        "scaled_images_overlap_ratios": [0.0, 0.25],
        "scaled_images_feature_dims": [16, 16],
        "image_model_config": {"image_size": 16, "patch_size": 4, "num_hidden_layers": 2},
        "patch_model_config": {"image_size": 16, "patch_size": 4, "num_hidden_layers": 2},
        "fov_model_config": {"image_size": 16, "patch_size": 4, "num_hidden_layers": 2},
    },
    "diffusion_gemma": {"text_config": EXPERTS, **EXPERTS},
    "Dots3NoteAudioModel": {"adapter_input_size": 64},
    "Dots3NoteForCausalLM": DOTS3_TEXT,
    "Dots3NoteForConditionalGeneration": DOTS3,
    "Dots3NoteModel": DOTS3,
    "Dots3NoteTextModel": DOTS3_TEXT,
    "dpt": {
        "num_hidden_layers": 4,
        "backbone_out_indices": [0, 1, 2, 3],
        "neck_hidden_sizes": [8, 8, 16, 16],
        "fusion_hidden_size": 64,
    },
    "efficientloftr": {
        "stage_num_blocks": [1, 1, 1, 1],
        "out_features": [16, 16, 32, 64],
        "hidden_size": 64,
        "num_attention_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "rope_parameters": {**PLAIN, "partial_rotary_factor": 4.0},
    },
    "esmfold2": {
        "pairwise_hidden_size": 32,
        "single_inputs_size": 99,
        "num_loops": 1,
        "folding_trunk_num_hidden_layers": 2,
        "parcae_num_coda_layers": 1,
        "atom_encoder": {**ATOMS, "output_dim": 32},
        "structure_head": {
            "diffusion_module": {"hidden_size": 64, "atom_encoder": {**ATOMS, "output_dim": 64}}
        },
        "esmc_config": {"num_key_value_heads": 4},
    },
    "EsmForProteinFolding": {
        "vocab_size": 33,
        "is_folding_model": True,
        "esmfold_config": {"trunk": {"num_blocks": 2}, "fp16_esm": False},
    },
    "falcon_h1": {"mamba_chunk_size": 8},
    "FocalNetBackbone": {"embed_dim": 16, "hidden_sizes": [32, 64, 128, 128], "depths": [1] * 4},
    "Gemma3nAudioEncoder": {
        "hidden_size": 64,
        "conf_num_attention_heads": 4,
        "conf_num_hidden_layers": 2,
        "sscp_conv_channel_size": [16, 8],
    },
    "gemma4_assistant": {
        "text_config": {
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            **dict.fromkeys(("hidden_size_per_layer_input", "vocab_size_per_layer_input"), 0),
        },
        "backbone_hidden_size": 32,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gradium_phonon_tts": {"flow_head_config": {"condition_dim": 64, "hidden_size": 64}},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "mamba_chunk_size": 8},
    "HieraForPreTraining": {"decoder_hidden_size": 32, "decoder_depth": 1, "decoder_num_heads": 2},
    "instructblipvideo": {"video_token_index": IMAGE},
    "JanusVQVAE": {"num_patches": 2},
    "kimi_linear": {
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse"],
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "q_lora_rank": None,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
        "num_experts": 4,
        "num_experts_per_token": 2,
    },
    "kosmos2": {"latent_query_num": 4},
    "kyutai_speech_to_text": {"codebook_vocab_size": 65, "num_codebooks": 4, "audio_pad_token_id": 100},
    "lilt": {"hidden_size": 48},
    "Llama4VisionModel": {
        "hidden_size": 32,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "projector_input_dim": 64,
        "projector_output_dim": 64,
        "vision_output_dim": 64,
        "image_size": 56,
        "patch_size": 14,
    },
    "longcat_flash": {"head_dim": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16},
    "luke": {"entity_vocab_size": 64, "entity_emb_size": 32},
    "lw_detr": {
        "backbone_config": {
            "num_hidden_layers": 4,
            "window_block_indices": [0, 2],
            "out_indices": STAGES,
            "image_size": 64,
            "patch_size": 8,
            "num_windows": 4,
        },
        "d_model": 64,
        "num_queries": 4,
    },
    "LwDetrViTEncoder": {"num_windows": 4, "image_size": 64, "patch_size": 8},
    "mamba2": {"chunk_size": 8, "num_heads": 8, "head_dim": 16, "state_size": 8, "n_groups": 1, "expand": 2},
    "MllamaVisionModel": {"intermediate_layers_indices": [0, 1]},
    "muse_spark": {"audio_config": {**WAVES, "out_hidden_size": 64}},
    "MuseSparkAudioModel": WAVES,
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "neucodec": {"quantization_dim": 128, "num_key_value_heads": 4},
    "owlv2": {"projection_dim": 64},
    "pi0": {"vlm_config": {"projection_dim": 64}},
    "Pix2StructTextModel": {"initializer_range": 0.02},
    "pp_ocrv6_small_rec": {"head_out_channels": 96},
    "prompt_depth_anything": {
        "backbone_config": {"out_indices": [1, 2], "reshape_hidden_states": False},
        "neck_hidden_sizes": [16, 32],
        "reassemble_factors": [2, 1],
    },
    "Qwen2_5OmniTalkerForConditionalGeneration": {"embedding_size": 64},
    "Qwen2_5OmniToken2WavBigVGANModel": {"upsample_initial_channel": 96},
    "Qwen2_5OmniToken2WavModel": {"bigvgan_config": {"upsample_initial_channel": 96}},
    "Qwen2VisionTransformerPretrainedModel": {"embed_dim": 64, "num_heads": 2, "hidden_size": 64},
    "Qwen3OmniMoeTalkerForConditionalGeneration": {
        "spatial_merge_size": 2,
        "text_config": {
            "shared_expert_intermediate_size": 32,
            "rope_scaling": {**PLAIN, "mrope_section": [3, 3, 2], "mrope_interleaved": True},
        },
    },
    "Qwen4ExpForCausalLM": SPARSE,
    "Qwen4ExpForConditionalGeneration": {"text_config": SPARSE},
    "Qwen4ExpModel": {"text_config": SPARSE},
    "Qwen4ExpTextModel": SPARSE,
    "sam3_lite_text": {
        "vision_config": {
            "backbone_config": {
                "image_size": 56,
                "patch_size": 14,
                "window_size": 2,
                "pretrain_image_size": 56,
                "global_attn_indexes": [1],
            },
            "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
        }
    },
    "SamHQModel": SEGMENTS,
    "SamModel": SEGMENTS,
    "sapiens2": {
        "head_config": {
            "upsample_out_channels": [32, 32],
            "conv_out_channels": [32],
            "scale_conv_out_channels": [16, 16],
            "scale_final_hidden_sizes": [16, 8],
        }
    },
    "seamless_m4t": VOCODER,
    "seamless_m4t_v2": {
        **VOCODER,
        "variance_predictor_embed_dim": 64,
        "t2u_variance_predictor_embed_dim": 64,
        "t2u_variance_predictor_hidden_dim": 64,
        "variance_predictor_hidden_dim": 64,
        "variance_predictor_kernel_size": 3,
        "variance_pred_dropout": 0.0,
    },
    "seggpt": {
        "image_size": [64, 32],
        "pretrain_image_size": 32,
        "patch_size": 8,
        "merge_index": 0,
        "intermediate_hidden_state_indices": [0, 1],
    },
    "Siglip2Model": {"text_config": {"projection_size": 32}},
    "slanet": {
        "max_text_length": 8,
        "backbone_config": {
            "out_features": [f"stage{stage}" for stage in (2, 3, 4, 5)],
            "out_indices": [2, 3, 4, 5],
        },
    },
    "SpeechEncoderDecoderModel": {"decoder": CROSSED},
    "swin2sr": {"image_size": 16, "window_size": 4, "depths": [2, 2], "num_heads": [4, 4]},
    "SwinForMaskedImageModeling": WINDOWS,
    "Swinv2ForMaskedImageModeling": WINDOWS,
    "t5gemma2": {"dropout_rate": 0.0, "text_config": {"dropout_rate": 0.0}},
    "T5GemmaEncoderModel": {"is_encoder_decoder": False},
    "tipsv2_dpt": {
        "backbone_config": {"out_indices": [1, 2], "reshape_hidden_states": False},
        "neck_hidden_sizes": [16, 32],
        "reassemble_factors": [2, 1],
    },
    "tvp": {"max_img_size": 64, "type_vocab_size": 2, "num_frames": 2, "visual_prompt_size": 8},
    "uvdoc": {"backbone_config": {"out_indices": [1, 2, 3, 4, 5, 6]}},
    "vibevoice": {"semantic_model_config": CODEC, "audio_config": CODEC},
    "vibevoice_asr": {"semantic_tokenizer_encoder_config": CODEC, "acoustic_tokenizer_encoder_config": CODEC},
    "VideoPrismClipModel": {"vision_config": {"hidden_size": 64}},
    "ViltForImagesAndTextClassification": {"num_images": 2, "modality_type_vocab_size": 3},
    "VisionEncoderDecoderModel": {"decoder": CROSSED},
    "vitmatte": {"convstream_hidden_sizes": [16, 32, 32], "fusion_hidden_sizes": [32, 32, 16, 8]},
    "vitpose": {"backbone_config": {"image_size": [64, 48], "patch_size": [16, 16]}},
    "vitpose_backbone": {"image_size": [64, 48], "patch_size": [16, 16]},
    "vits": {
        "upsample_initial_channel": 32,
        "upsample_rates": [2, 2],
        "upsample_kernel_sizes": [4, 4],
        "resblock_kernel_sizes": [3],
        "resblock_dilation_sizes": [[1, 3]],
        "flow_size": 64,
        "prior_encoder_num_flows": 2,
        "prior_encoder_num_wavenet_layers": 2,
        "posterior_encoder_num_wavenet_layers": 2,
        "duration_predictor_num_flows": 2,
        "noise_scale": 0.0,
        "noise_scale_duration": 0.0,
    },
    "vjepa2": {"crop_size": 32, "frames_per_clip": 4, "pred_hidden_size": 64, "pred_num_attention_heads": 4},
    "wavlm": {"conv_dim": [32] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2},
    "xcodec2": {"quantization_dim": 128, "num_key_value_heads": 4},
    "zoedepth": {
        "neck_hidden_sizes": [16, 32],
        "reassemble_factors": [2, 1],
        "backbone_config": {
            "out_features": ["stage1", "stage2"],
            "out_indices": [1, 2],
            "reshape_hidden_states": False,
        },
    },
}


def ids(*shape: int) -> Drawn:
    """Tokens."""

    def drawn(_: Any) -> Any:
        import torch

        return torch.randint(5, 100, shape)

    return drawn


def some(*shape: int) -> Drawn:
    """Numbers; with a gradient, as an embedding would make them."""

    def drawn(_: Any) -> Any:
        import torch

        return torch.randn(shape).requires_grad_()

    return drawn


def ones(*shape: int) -> Drawn:
    """A mask that leaves all in."""

    def drawn(_: Any) -> Any:
        import torch

        return torch.ones(shape, dtype=torch.long)

    return drawn


def just(*values: Any) -> Drawn:
    """A tensor of these."""

    def drawn(_: Any) -> Any:
        import torch

        return torch.tensor(values)

    return drawn


def no(_: Any) -> bool:
    """A switch that is off."""
    return False


def sized(*shape: int | str) -> Drawn:
    """Numbers; of the shape, a name is what the configuration says there."""

    def drawn(config: Any) -> Any:
        return some(*(getattr(config, size) if isinstance(size, str) else size for size in shape))(config)

    return drawn


def plain(*shape: int) -> Drawn:
    """Numbers without a gradient, for some models ask for one themselves, or write on what they get."""

    def drawn(_: Any) -> Any:
        import torch

        return torch.randn(shape)

    return drawn


def mels(config: Any) -> Any:
    """Frames of speech that the decoder is to say."""
    return some(ROWS, 8, config.num_mel_bins)(config)


def patches(config: Any) -> Any:
    """Pixels behind the row and the column of each patch."""
    import torch

    places = torch.tensor([[row, column] for row in (1, 2) for column in (1, 2)])
    pixels = torch.randn(ROWS, len(places), config.patch_embed_hidden_size)
    return torch.cat([places.expand(ROWS, -1, -1).float(), pixels], dim=-1)


def atoms(_: Any) -> Any:
    """Two atoms for each token."""
    import torch
    from transformers.models.esmfold2.modeling_esmfold2 import EsmFold2AtomInputs

    tokens = torch.arange(LENGTH).repeat_interleave(2)[None]
    return EsmFold2AtomInputs(
        ref_pos=torch.randn(*tokens.shape, 3),
        ref_charge=torch.zeros(tokens.shape),
        atom_attention_mask=torch.ones_like(tokens).bool(),
        ref_element=torch.full_like(tokens, 6),
        ref_atom_name_chars=torch.ones(*tokens.shape, 4, dtype=torch.long),
        ref_space_uid=tokens,
        atom_to_token=tokens,
    )


def packed(config: Any) -> Any:
    """The patches of an image in a row."""
    return some(1, 3, config.patch_size, 64 * config.patch_size)(config)


def moving(config: Any) -> Any:
    """A video."""
    return some(ROWS, config.num_frames, config.num_channels, config.image_size, config.image_size)(config)


def hidden(config: Any) -> Any:
    """Every other patch of it."""
    import torch

    places = (config.num_frames // config.tubelet_size) * (config.image_size // config.patch_size) ** 2
    return torch.arange(places).expand(ROWS, places) % 2 == 0


def positions(rows: int, side: int) -> Drawn:
    """Where the patches of a square image are."""

    def drawn(_: Any) -> Any:
        import torch

        return torch.cartesian_prod(torch.arange(side), torch.arange(side)).expand(rows, -1, 2)

    return drawn


def placed(rows: int, side: int, width: int) -> Drawn:
    """Those of a square image, each with its row and its column before it."""

    def drawn(config: Any) -> Any:
        import torch

        places = positions(rows, side)(config).float() + 1
        return torch.cat([places, some(rows, side * side, width - 2)(config)], dim=-1)

    return drawn


def series(rows: int, *named: str, ahead: bool = False) -> Drawn:
    """As long as a model that forecasts wants it, and as wide as its configuration says by these names."""

    def drawn(config: Any) -> Any:
        length = config.prediction_length if ahead else config.context_length + max(config.lags_sequence)
        return some(rows, length, *(getattr(config, name) for name in named))(config)

    return drawn


def kept(config: Any) -> Any:
    """Keys and values that another model kept, by the kind of attention."""
    kinds = zip(config.text_config.layer_types, config.text_config.per_layer_config, strict=True)
    return {
        kind: tuple(plain(ROWS, layer.num_key_value_heads, 5, layer.head_dim)(config) for _ in "kv")
        for kind, layer in kinds
    }


def part(config: Any, name: str) -> Any:
    """That part of a configuration, or what is one itself."""
    return getattr(config, name, config)


def pictured(name: str, images: int = 1) -> Drawn:
    """Text that begins with as many tokens of ``images`` as the configuration says by this name for one."""

    def drawn(config: Any) -> Any:
        import torch

        pieces = torch.full((2, images * getattr(config, name)), IMAGE)
        return torch.cat([pieces, ids(2, 9)(config)], dim=1)

    return drawn


FORECAST: dict[str, Drawn] = {
    "past_values": series(2),
    "past_time_features": series(2, "num_time_features"),
    "past_observed_mask": lambda config: series(2)(config).detach().fill_(1),
    "future_values": series(2, ahead=True),
    "future_time_features": series(2, "num_time_features", ahead=True),
}
FLAT = {"pixel_values": sized(1, 16, 3, "patch_size", "patch_size"), "grid_thw": just([1, 4, 4])}
HEARD = {"input_features": some(16, 32), "feature_lens": just(32), "aftercnn_lens": just(16)}
LINE = {"pixel_values": some(ROWS, 3, 96, 128)}
SEEN = {
    "input_ids": just(*[[*[IMAGE] * 16, 5, 6]] * ROWS),
    "attention_mask": ones(ROWS, 18),
    "pixel_values": some(ROWS, 1, 3, 56, 56),
    "pixel_attention_mask": just(*[[True]] * ROWS),
}
PACKED = {"pixel_values": packed, "target_sizes": just([8, 8])}
STATELESS = {"input_ids": ids(ROWS, LENGTH), "use_cache": no}
SHAPED = {
    "pixel_values": some(ROWS, 16, 588),
    "pixel_attention_mask": ones(ROWS, 16),
    "spatial_shapes": just(*[[4, 4]] * ROWS),
}
TIMED = {"input_ids": ids(ROWS, 4), "input_features": some(ROWS, 16, 32)}
UNITS = {
    "inputs_embeds": some(ROWS, LENGTH, 64),
    "decoder_input_ids": ids(ROWS, 7),
    "char_input_ids": ids(ROWS, LENGTH),
    "char_count_per_id": ones(ROWS, LENGTH),
}
DRAFT: dict[str, Drawn] = {  # made one token at a time
    "inputs_embeds": lambda config: some(ROWS, 1, 2 * config.backbone_hidden_size)(config),
    "shared_kv_states": kept,
}
INPUTS: dict[str, dict[str, Drawn]] = {
    "apertus1p5": {
        "input_ids": just(*[[*[IMAGE] * 16, 5, 6]] * ROWS),
        "pixel_values": some(ROWS, 3, 8, 8),
        "image_sizes": just(*[[8, 8]] * ROWS),
    },
    "audio_spectrogram_transformer": {
        "input_values": lambda config: some(2, config.max_length, config.num_mel_bins)(config)
    },
    "autoformer": FORECAST,
    "AutoformerDecoder": {
        "trend": lambda config: some(2, 4, config.feature_size)(config),
        "inputs_embeds": lambda config: some(2, 4, config.feature_size)(config),
        "encoder_hidden_states": lambda config: some(2, 8, config.d_model)(config),
    },
    "AutoformerEncoder": {"inputs_embeds": lambda config: some(2, 9, config.feature_size)(config)},
    "Blip2ForImageTextRetrieval": {
        "pixel_values": some(2, 3, 56, 56),
        "input_ids": ids(2, 9),
        "attention_mask": ones(2, 9),
    },
    "CLIPForImageClassification": {"pixel_values": some(2, 3, 56, 56)},
    "clipseg": {"input_ids": ids(2, 9), "pixel_values": some(2, 3, 56, 56)},
    "clvp": {
        "input_ids": ids(2, 9),
        "input_features": lambda config: some(2, config.decoder_config.feature_size, 20)(config),
    },
    "depth_pro": {"pixel_values": some(2, 3, 32, 32)},
    "DiaDecoder": {
        "input_ids": lambda config: ids(2, 7, config.num_channels)(config),
        "encoder_hidden_states": lambda config: some(2, 5, config.cross_hidden_size)(config),
    },
    "Dots3NoteAudioModel": {
        "input_features": lambda config: some(ROWS, config.feature_size, 32)(config),
        "chunk_sample_lengths": lambda config: just(*[32 * config.hop_length] * ROWS)(config),
    },
    "EfficientLoFTRForKeypointMatching": {"pixel_values": some(2, 2, 3, 64, 64)},
    "EfficientLoFTRModel": {"pixel_values": some(2, 2, 3, 64, 64)},
    "EsmFold2Model": {
        **dict.fromkeys(("token_index", "residue_index"), just([*range(LENGTH)])),
        **dict.fromkeys(("asym_id", "sym_id", "entity_id", "mol_type"), just([0] * LENGTH)),
        "res_type": just([*range(LENGTH)]),
        "token_bonds": some(1, LENGTH, LENGTH, 1),
        "attention_mask": ones(1, LENGTH),
        "atom_inputs": atoms,
    },
    "EsmForProteinFolding": {
        "input_ids": lambda config: ids(1, 9)(config) % 20,
        "attention_mask": ones(1, 9),
    },
    "FunAsrNanoEncoder": {
        "input_features": lambda config: some(2, 32, config.input_size)(config),
        "input_features_mask": ones(2, 32),
    },
    "Gemma3nAudioEncoder": {
        "audio_mel": sized(ROWS, 32, "input_feat_size"),
        "audio_mel_mask": lambda config: ones(ROWS, 32)(config) == 0,
    },
    "gemma4_assistant": DRAFT,
    "gemma4_unified_assistant": DRAFT,
    "Gemma4AudioModel": {"input_features": some(2, 32, 128), "attention_mask": ones(2, 32)},
    "Gemma4VisionModel": {
        "pixel_values": lambda config: some(2, 36, 3 * config.patch_size**2)(config),
        "pixel_position_ids": positions(2, 6),
    },
    "granite_speech5": {
        "input_features": lambda config: some(2, 32, 4 * part(config, "encoder_config").num_mel_bins)(config)
    },
    "idefics": {
        "input_ids": ids(2, 9),
        "pixel_values": lambda config: some(2, 1, 3, *[config.vision_config.image_size] * 2)(config),
        "image_attention_mask": ones(2, 9, 1),
    },
    "Idefics2PerceiverResampler": {
        "context": lambda config: some(2, 5, part(config, "text_config").hidden_size)(config),
        "attention_mask": ones(2, 5),
    },
    "informer": FORECAST,
    "Inkling2VisionModel": {
        "pixel_values": lambda config: some(
            16, *[config.patch_size * config.spatial_merge_size] * 2, config.num_channels
        )(config),
        "image_grid_thw": just([1, 4, 4]),
    },
    "InklingAudioModel": {
        "audio_input_ids": lambda config: ids(ROWS, LENGTH, config.num_codebooks)(config) % 8
    },
    "instructblip": {
        "pixel_values": some(2, 3, 56, 56),
        "qformer_input_ids": ids(2, 6),
        "input_ids": pictured("num_query_tokens"),
    },
    "instructblipvideo": {
        "pixel_values": some(2, 4, 3, 56, 56),
        "qformer_input_ids": ids(2, 6),
        "input_ids": pictured("num_query_tokens", 4),
    },
    "kosmos2": {
        "pixel_values": some(2, 3, 56, 56),
        "input_ids": ids(2, 9),
        "image_embeds_position_mask": just(*[[1] * 4 + [0] * 5] * 2),
    },
    "kosmos2_5": {"flattened_patches": placed(2, 4, 770), "attention_mask": ones(2, 16)},
    "LongformerForMultipleChoice": {"input_ids": just([[5, 6, 2, 2, 7, 8, 2]] * 2)},
    "LongformerForQuestionAnswering": {"input_ids": just([5, 6, 2, 2, 7, 8, 2], [5, 6, 2, 2, 7, 9, 2])},
    "luke": {
        "input_ids": ids(2, 9),
        "entity_ids": just([5, 6], [7, 8]),
        "entity_attention_mask": ones(2, 2),
        "entity_position_ids": just([[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        "entity_start_positions": just([1, 3], [1, 3]),
        "entity_end_positions": just([2, 4], [2, 4]),
    },
    "lw_detr": {"pixel_values": some(2, 3, 64, 64)},
    "MimiDecoderModel": {"latents": sized(ROWS, "hidden_size", LENGTH)},
    "MiniCPMOcrVisionModel": PACKED,
    "MiniCPMV4_6VisionModel": PACKED,
    "MiniCPMV4_7VisionModel": PACKED,
    "Molmo2Adapter": {
        "image_features": lambda config: some(1, 16, config.hidden_size * len(config.vision_feature_layer))(
            config
        ),
        "pooled_patches_idx": just(*[[4 * token, 4 * token + 1, 4 * token + 2, -1] for token in range(4)]),
    },
    "Molmo2VisionModel": {
        "pixel_values": lambda config: some(
            1, config.num_position_embeddings, config.num_channels * config.patch_size**2
        )(config)
    },
    "MoshiDepthDecoder": {"input_ids": ids(ROWS, 4), "last_hidden_state": sized(ROWS, 1, "input_size")},
    "MuseGlimmerAssistantModel": {
        "noise_embeds": some(ROWS, 4, 64),
        "context_hidden_states": some(ROWS, LENGTH, 320),
    },
    "Nemotron3_5TranscribeAudioModel": {
        "input_features": lambda config: some(ROWS, 32, config.asr_config.num_mel_bins)(config)
    },
    "NeuCodecModel": {"input_values": some(ROWS, 1, 3200), "input_features": some(ROWS, 10, 160)},
    "PaddleOCRVisionModel": FLAT,
    "PaddleOCRVisionTransformer": FLAT,
    "Phi4MultimodalAudioModel": {"hidden_states": sized(ROWS, 32, "input_size"), "mask": ones(ROWS, 32)},
    "PI0ForConditionalGeneration": {
        **SEEN,
        "state": some(ROWS, 32),
        "noise": some(ROWS, 50, 32),
        "timestep": some(ROWS),
    },
    "PI0Model": {**SEEN, "action_embeds": some(ROWS, 5, 64)},
    "Pix2StructVisionModel": {"flattened_patches": patches},
    "PocketTTSAudioTokenizerDecoderModel": {"latents": sized(ROWS, "hidden_size", LENGTH)},
    "pp_ocrv5_mobile_rec": LINE,
    "pp_ocrv5_server_rec": LINE,
    "pp_ocrv6_small_rec": {"pixel_values": some(ROWS, 3, 48, 128)},
    "Qwen2_5OmniAudioEncoder": HEARD,
    "Qwen2_5OmniTalkerForConditionalGeneration": {"inputs_embeds": some(ROWS, LENGTH, 64)},
    "Qwen2_5OmniToken2WavBigVGANModel": {"mel_spectrogram": sized(1, "mel_dim", 16)},
    "Qwen2_5OmniToken2WavDiTModel": {
        "hidden_states": sized(1, 16, "mel_dim"),
        "condition_vector": sized(1, 32, "mel_dim"),
        "speaker_embedding": sized(1, 16, "enc_emb_dim"),
        "quantized_code": ids(1, 8),
        "time_step": just(0.5),
    },
    "Qwen2_5OmniToken2WavModel": {
        "code": ids(1, 8),
        "conditioning": lambda config: some(1, config.dit_config.enc_emb_dim)(config),
        "reference_mel": lambda config: some(1, 32, config.dit_config.mel_dim)(config),
    },
    "Qwen2VisionTransformerPretrainedModel": {
        "hidden_states": some(16, 3 * 2 * 14 * 14),
        "grid_thw": just([1, 4, 4]),
    },
    "Qwen3ASREncoder": {"input_features": some(ROWS, 16, 100), "input_features_mask": ones(ROWS, 100)},
    "Qwen3OmniMoeAudioEncoder": HEARD,
    "Qwen3OmniMoeCode2Wav": {"codes": ids(1, 16, 4)},
    "Qwen3OmniMoeTalkerForConditionalGeneration": {
        "inputs_embeds": some(ROWS, LENGTH, 64),
        "talker_input_ids": ids(ROWS, LENGTH),
        "attention_mask": ones(ROWS, LENGTH),
    },
    "rwkv": STATELESS,
    "SeamlessM4TCodeHifiGan": {"input_ids": ids(1, LENGTH), "spkr_id": just([0]), "lang_id": just([0])},
    "SeamlessM4TForSpeechToSpeech": {
        "input_features": some(ROWS, 32, 160),
        "decoder_input_ids": ids(ROWS, 7),
    },
    "SeamlessM4TTextToUnitForConditionalGeneration": UNITS,
    "SeamlessM4TTextToUnitModel": UNITS,
    "SeamlessM4Tv2CodeHifiGan": {"input_ids": ids(1, LENGTH), "speaker_id": just([0]), "lang_id": just([0])},
    "SeamlessM4Tv2TextToUnitDecoder": {**UNITS, "encoder_hidden_states": some(ROWS, LENGTH, 64)},
    "SeamlessM4Tv2TextToUnitForConditionalGeneration": UNITS,
    "SeamlessM4Tv2TextToUnitModel": UNITS,
    "seggpt": dict.fromkeys(("pixel_values", "prompt_pixel_values", "prompt_masks"), some(ROWS, 3, 32, 32)),
    "Siglip2ForImageClassification": SHAPED,
    "Siglip2Model": {**SHAPED, "input_ids": ids(ROWS, LENGTH)},
    "SpeechEncoderDecoderModel": {"input_values": plain(ROWS, 4000), "decoder_input_ids": ids(ROWS, 7)},
    "SpeechT5DecoderWithoutPrenet": {"input_values": some(ROWS, LENGTH, 64)},
    "SpeechT5DecoderWithTextPrenet": {"input_values": ids(ROWS, LENGTH)},
    "SpeechT5EncoderWithoutPrenet": {"input_values": some(ROWS, LENGTH, 64)},
    "SpeechT5EncoderWithTextPrenet": {"input_values": ids(ROWS, LENGTH)},
    "SpeechT5ForSpeechToSpeech": {
        "input_values": plain(ROWS, 4000),
        "decoder_input_values": mels,
        "speaker_embeddings": some(ROWS, 512),
    },
    "SpeechT5ForTextToSpeech": {
        "input_ids": ids(ROWS, LENGTH),
        "decoder_input_values": mels,
        "speaker_embeddings": some(ROWS, 512),
    },
    "SpeechT5Model": {"input_values": some(ROWS, LENGTH, 64), "decoder_input_values": some(ROWS, 7, 64)},
    "SplinterForPreTraining": {
        "input_ids": just(*[[9, 104, 12, 33, 45, 60, 71, 104, 5]] * ROWS),
        "attention_mask": ones(ROWS, LENGTH),
    },
    "T5Gemma2Decoder": {"input_ids": ids(ROWS, LENGTH), "encoder_hidden_states": some(ROWS, LENGTH, 64)},
    "TimeSeriesTransformerDecoder": {
        "inputs_embeds": lambda config: some(2, 4, config.feature_size)(config),
        "encoder_hidden_states": lambda config: some(2, 8, config.d_model)(config),
    },
    "tvp": {  # a row: it spreads the embedding of a column over no more
        "input_ids": ids(1, LENGTH),
        "attention_mask": ones(1, LENGTH),
        "pixel_values": plain(1, 2, 3, 64, 64),
    },
    "UVDocModel": {"pixel_values": some(1, 3, 288, 288)},
    "VideoMAEForPreTraining": {"pixel_values": moving, "bool_masked_pos": hidden},
    "ViltForImagesAndTextClassification": {
        "input_ids": ids(ROWS, LENGTH),
        "pixel_values": some(ROWS, 2, 3, 32, 32),
    },
    "VisionEncoderDecoderModel": {"pixel_values": some(ROWS, 3, 32, 32), "decoder_input_ids": ids(ROWS, 7)},
    "VisualBertForRegionToPhraseAlignment": {
        "input_ids": ids(ROWS, LENGTH),
        "attention_mask": ones(ROWS, LENGTH),
        "visual_embeds": sized(ROWS, 4, "visual_embedding_dim"),
        "visual_attention_mask": ones(ROWS, 4),
        "region_to_phrase_position": ones(ROWS, LENGTH + 4),
    },
    "vitpose": {"pixel_values": some(ROWS, 3, 64, 48)},
    "vitpose_backbone": {"pixel_values": some(ROWS, 3, 64, 48)},
    "VoxtralRealtimeForConditionalGeneration": TIMED,
    "VoxtralRealtimeModel": TIMED,
    "XCLIPModel": {"input_ids": ids(ROWS, LENGTH), "pixel_values": some(ROWS, 8, 3, 56, 56)},
    "XCLIPVisionModel": {"pixel_values": sized(8, 3, "image_size", "image_size")},
    "Xcodec2Model": {"input_values": some(ROWS, 1, 3200), "input_features": some(ROWS, 10, 160)},
    "xlstm": STATELESS,
    "XmodModel": {"input_ids": ids(ROWS, LENGTH), "lang_ids": just(*[0] * ROWS)},
}


def folder(kind: Any) -> str:
    """Transformers' folder that has the class."""
    parts: list[str] = kind.__module__.split(".")
    return parts[2] if parts[:2] == ["transformers", "models"] and len(parts) > 2 else ""


PARTS: dict[str, dict[str, Any]] = {  # of configurations that transformers 4 does not make without
    "dbrx": DBRX,
    "encoder_decoder": {"encoder": {"model_type": "bert"}, "decoder": {"model_type": "bert", **CROSSED}},
    "musicgen": {**MUSIC, "decoder": {"model_type": "musicgen_decoder"}},
    "musicgen_melody": {**MUSIC, "decoder": {"model_type": "musicgen_melody_decoder"}},
    "phi4_multimodal": {"vision_config": {}, "audio_config": {}},
    "speech_encoder_decoder": {"encoder": {"model_type": "wav2vec2"}, "decoder": DECODER},
    "vision_encoder_decoder": {"encoder": {"model_type": "vit"}, "decoder": DECODER},
}


def parts(kind: Any) -> dict[str, Any]:
    """What the configuration of ``kind`` is made of, where it has to be said."""
    return copy.deepcopy(PARTS.get(folder(kind), {}))  # transformers takes out of it what it reads


def sizes(kind: Any) -> dict[str, Any]:
    """What the configuration of ``kind`` has to say."""
    return {**SIZES.get(folder(kind), {}), **SIZES.get(kind.__name__, {})}


def inputs(model: Any, names: Any) -> dict[str, Any]:
    """What the model is known to take, of the arguments ``names``; empty where nothing is known."""
    kind = type(model)
    known = INPUTS.get(kind.__name__, INPUTS.get(folder(kind), {}))
    return {name: drawn(model.config) for name, drawn in known.items() if name in names}
