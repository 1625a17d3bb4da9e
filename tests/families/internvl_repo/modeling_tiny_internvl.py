"""A tiny vision-language model in the manner of OpenGVLab's InternVL repositories.

What matters here is how it checkpoints: the vision encoder calls ``torch.utils.checkpoint.checkpoint``
itself, without ``use_reentrant``, and does not look at what ``gradient_checkpointing_enable`` was
told; and a batch's image runs through the tower twice (the picture and its thumbnail), as tiles do.
"""

from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_tiny_internvl import TinyInternVLConfig

PATCH = 14


class Block(nn.Module):
    def __init__(self, size: int, inner: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.proj = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.fc1, self.fc2 = nn.Linear(size, inner), nn.Linear(inner, size)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, size = hidden.shape
        parts = self.qkv(self.norm1(hidden)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2)
        hidden = hidden + self.proj(mixed.reshape(batch, length, size))
        return hidden + self.fc2(nn.functional.gelu(self.fc1(self.norm2(hidden))))


class Encoder(nn.Module):
    def __init__(self, vision: dict[str, int]) -> None:
        super().__init__()
        size = vision["hidden_size"]
        arguments = (size, vision["intermediate_size"], vision["num_attention_heads"])
        self.layers = nn.ModuleList(Block(*arguments) for _ in range(vision["num_hidden_layers"]))
        self.gradient_checkpointing = False

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden = torch.utils.checkpoint.checkpoint(layer, hidden)
            else:
                hidden = layer(hidden)
        return hidden


class VisionModel(PreTrainedModel):
    config_class = TinyInternVLConfig
    supports_gradient_checkpointing = True

    def __init__(self, config: TinyInternVLConfig) -> None:
        super().__init__(config)
        size = config.vision["hidden_size"]
        self.patches = nn.Conv2d(3, size, PATCH, PATCH)
        self.encoder = Encoder(config.vision)
        self.post_init()

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.encoder(self.patches(pixel_values).flatten(2).transpose(1, 2))
        return features


class TinyInternVLModel(PreTrainedModel):
    config_class = TinyInternVLConfig
    supports_gradient_checkpointing = True

    def __init__(self, config: TinyInternVLConfig) -> None:
        super().__init__(config)
        self.vision_model = VisionModel(config)
        self.language_model = Qwen2ForCausalLM(Qwen2Config(**config.text))
        self.mlp1 = nn.Linear(config.vision["hidden_size"], config.text["hidden_size"])
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.language_model.get_input_embeddings()

    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor,
        attention_mask: Any = None,
        labels: Any = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        seen = self.vision_model(pixel_values) + self.vision_model(pixel_values.flip(-1))
        embeds = self.language_model.get_input_embeddings()(input_ids).clone()
        embeds[input_ids == self.config.image_token] = self.mlp1(seen).flatten(0, 1)
        output: CausalLMOutputWithPast = self.language_model(
            inputs_embeds=embeds, attention_mask=attention_mask, labels=labels
        )
        return output
