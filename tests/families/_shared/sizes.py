"""What makes a model tiny, and the tokens of its images; by what several families have in common."""

from __future__ import annotations

VOCABULARY = 128
IMAGE = 120  # the token that stands for a piece of an image
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
LINEAR = {
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
QWEN_IDS = {
    "image_token_id": IMAGE,
    "video_token_id": IMAGE + 1,
    "vision_start_token_id": IMAGE + 2,
    "vision_end_token_id": IMAGE + 3,
}
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
GLM_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
DEEPSEEK = {
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
