"""Sizes by the names that many configurations have for them, and what of a class's own stays as it is."""

from __future__ import annotations

import re

from tests.families._shared import small
from tests.families._shared.sizes import IMAGE

NATURAL = {name: value for name, value in small.LANGUAGE.items() if not name.endswith("layer_types")}
MORE = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": 128,
    "hidden_size_per_layer_input": 16,
    "laurel_rank": 8,
    "activation_sparsity_pattern": 0.0,
    "image_size": 32,
    "patch_size": 8,
    "rotary_dim": 8,
    "default_language": "en_XX",
    "num_mel_bins": 16,
    "max_source_positions": 16,
    "max_target_positions": 64,
    "mask_time_prob": 0.0,
    "layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "drop_path_rate": 0.0,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "prediction_length": 4,
    "context_length": 8,
    "lags_sequence": [1, 2],
    "vocabulary_map": dict.fromkeys(("<image>", "<|extra_200|>", "<|visual token 000000|>"), IMAGE),
    "downsample_rate": "1/2",
    "deepstack_layer_map": [[0, 0]],
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "n_input_layers": 1,
    "n_output_layers": 1,
    "clip_qkv": 8.0,
}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
KINDS = {"layer_types": ["sliding_attention", "full_attention"] * 2}
# Sizes of heads and the rotary embedding as the class has them: what it derives from others fits those only.
DERIVED = {
    name: value
    for name, value in {**NATURAL, **MORE}.items()
    if name != "head_dim" and not name.startswith("rope_")
}
LATENT = {  # keys and values come out of a narrower tensor
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 4,
    "indexer_n_heads": 2,
    "indexer_head_dim": 16,
    "indexer_budget": 4,
    "indexer_compress_ratio": 2,
}
HYBRID = {  # every other layer attends, the rest keep a state
    "attn_layer_indices": [1, 3],
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "full_attention_interval": 2,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "use_mamba_kernels": False,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_d_ssm": 128,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "state_size": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
WHOLE = {"partial_rotary_factor": 1.0}
CHOICES = (
    {**NATURAL, **MORE},
    {**NATURAL, **MORE, **KINDS},
    {**NATURAL, **MORE, **KINDS, "rope_parameters": dict.fromkeys(KINDS["layer_types"], PLAIN)},
    {**NATURAL, **MORE, **small.MROPE},
    {**NATURAL, **MORE, **WHOLE, "mrope_section": [3, 3, 2]},
    NATURAL,
    small.LANGUAGE,
    DERIVED,
    {**DERIVED, **LATENT},
    {**DERIVED, **HYBRID},
    {**DERIVED, **LATENT, **HYBRID},
)
# In a class's own proportions: what is a width is said by what it is not.
NARROWER = (16, 8, 32)
LAYERS = 4
GROUPS = 32  # into which channels are often divided
WORDS = 512  # of a vocabulary
NO_WIDTH = re.compile(
    r"vocab|position|length|seq|token|_ids?$|index|ima?ge?_|image|patch|window|frame|kernel|stride|bins?$|max_|"
    r"num_|n_ctx|chunk|theta|sampling|block|bucket|distance|heads$|n_head$|types?$|offset|duration|freq|lags|fft|hop"
)
DEPTH = re.compile(r"layers$|n_layer$|^depths?$|(?<!per_)layer_num$|num_blocks$|^num_layer$")
STAGES = [1, 2, 3, 4]  # of a backbone with four
# In place of a backbone out of a package that no stack has; transformers 4 has switches beside it.
BACKBONE = {
    "model_type": "resnet",
    "embedding_size": 16,
    "hidden_sizes": [16, 16, 32, 32],
    "depths": [1] * 4,
    "layer_type": "basic",
}
PLAIN_BACKBONE = {"backbone": None, "use_timm_backbone": False, "use_pretrained_backbone": False}
LAYERS_NAMED = ("feature_layer", "feature_layers", "deepstack_visual_indexes", "out_indices")
UNSAID = {  # where a class says nothing of its own
    "attn_layer_indices": [1, 3],
    **{name: DERIVED[name] for name in ("n_routed_experts", "n_shared_experts", "num_experts")},
    **{name: DERIVED[name] for name in ("vocabulary_map", "downsample_rate", "deepstack_layer_map")},
    **{name: value for name, value in LATENT.items() if name.startswith("indexer_")},
}
# By the class; its checkpoints have it.
UNNAMED = {
    "rope_theta": 1e4,
    "shared_expert_intermediate_size": 32,
    "max_window_layers": 2,
    "spatial_merge_size": 2,
}
PERIOD = {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
