"""A small SigLIP that takes slices of any aspect ratio, with transformers' checkpointing in its encoder."""

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.configuration_utils import PretrainedConfig
from transformers.modeling_attn_mask_utils import _prepare_4d_attention_mask
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling
from transformers.modeling_utils import PreTrainedModel


class SiglipVisionConfig(PretrainedConfig):
    model_type = "siglip_vision_model"

    def __init__(
        self,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_channels=3,
        image_size=980,
        patch_size=14,
        hidden_act="gelu_pytorch_tanh",
        layer_norm_eps=1e-6,
        attention_dropout=0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_channels = num_channels
        self.image_size = image_size
        self.patch_size = patch_size
        self.hidden_act = hidden_act
        self.layer_norm_eps = layer_norm_eps
        self.attention_dropout = attention_dropout


class SiglipVisionEmbeddings(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_dim = config.hidden_size
        self.patch_size = config.patch_size
        self.side = config.image_size // config.patch_size
        self.patch_embedding = nn.Conv2d(
            config.num_channels, self.embed_dim, kernel_size=config.patch_size, stride=config.patch_size
        )
        self.position_embedding = nn.Embedding(self.side**2, self.embed_dim)

    def forward(self, pixel_values, patch_attention_mask, tgt_sizes=None):
        patches = self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        positions = torch.zeros(patches.shape[:2], dtype=torch.long)
        for row, mask in enumerate(patch_attention_mask):
            height, width = (int(n) for n in (tgt_sizes[row] if tgt_sizes is not None else mask.shape))
            ys = torch.arange(height) * self.side // height
            xs = torch.arange(width) * self.side // width
            positions[row, mask.flatten().cpu()] = (ys[:, None] * self.side + xs).flatten()
        return patches + self.position_embedding(positions.to(self.position_embedding.weight.device))


class SiglipAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.num_attention_heads
        width = config.hidden_size
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def _split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, hidden_states, attention_mask=None, output_attentions=False):
        query, key, value = (self._split(p(hidden_states)) for p in (self.q_proj, self.k_proj, self.v_proj))
        weights = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
        if attention_mask is not None:
            weights = weights + attention_mask
        weights = weights.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
        return self.out_proj((weights @ value).transpose(1, 2).flatten(2)), weights


class SiglipMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.activation_fn = ACT2FN[config.hidden_act]
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_states):
        return self.fc2(self.activation_fn(self.fc1(hidden_states)))


class SiglipEncoderLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = SiglipAttention(config)
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = SiglipMLP(config)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states, attention_mask, output_attentions=False):
        attended, weights = self.self_attn(self.layer_norm1(hidden_states), attention_mask, output_attentions)
        hidden_states = hidden_states + attended
        hidden_states = hidden_states + self.mlp(self.layer_norm2(hidden_states))
        return (hidden_states, weights) if output_attentions else (hidden_states,)


class SiglipPreTrainedModel(PreTrainedModel):
    config_class = SiglipVisionConfig
    base_model_prefix = "siglip"
    supports_gradient_checkpointing = True

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


class SiglipEncoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([SiglipEncoderLayer(config) for _ in range(config.num_hidden_layers)])
        self.gradient_checkpointing = False

    def forward(self, inputs_embeds, attention_mask=None, output_attentions=False):
        hidden_states = inputs_embeds
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                outputs = self._gradient_checkpointing_func(
                    layer.__call__, hidden_states, attention_mask, output_attentions
                )
            else:
                outputs = layer(hidden_states, attention_mask, output_attentions=output_attentions)
            hidden_states = outputs[0]
        return BaseModelOutput(last_hidden_state=hidden_states)


class SiglipVisionTransformer(SiglipPreTrainedModel):
    config_class = SiglipVisionConfig
    main_input_name = "pixel_values"

    def __init__(self, config):
        super().__init__(config)
        self.config = config
        self.embeddings = SiglipVisionEmbeddings(config)
        self.encoder = SiglipEncoder(config)
        self.post_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.post_init()

    def get_input_embeddings(self):
        return self.embeddings.patch_embedding

    def forward(self, pixel_values, patch_attention_mask=None, tgt_sizes=None):
        if patch_attention_mask is None:
            height, width = (side // self.config.patch_size for side in pixel_values.shape[2:])
            patch_attention_mask = torch.ones(
                (len(pixel_values), height, width), dtype=torch.bool, device=pixel_values.device
            )
        hidden_states = self.embeddings(pixel_values, patch_attention_mask, tgt_sizes)
        mask = patch_attention_mask.flatten(1)
        attention_mask = None if mask.all() else _prepare_4d_attention_mask(mask, hidden_states.dtype)
        hidden_states = self.encoder(hidden_states, attention_mask=attention_mask)[0]
        return BaseModelOutputWithPooling(last_hidden_state=self.post_layernorm(hidden_states))
