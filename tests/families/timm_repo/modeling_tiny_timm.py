"""A tiny vision-language model in the manner of MiniCPM-V-2 and OmniLMM.

What matters here is how it checkpoints: the vision tower is timm's, whose ``checkpoint_seq`` calls
``torch.utils.checkpoint.checkpoint`` without ``use_reentrant`` whatever the model was told; and the
tower runs once for each piece of an image.
"""

from typing import Any

import timm
import torch
from torch import nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_tiny_timm import TinyTimmConfig


class TinyTimmModel(PreTrainedModel):
    config_class = TinyTimmConfig
    supports_gradient_checkpointing = True

    def __init__(self, config: TinyTimmConfig) -> None:
        super().__init__(config)
        self.llm = Qwen2ForCausalLM(Qwen2Config(**config.text))
        self.vision = timm.create_model("vit_tiny_patch16_224", num_classes=0, **config.vision)
        self.resampler = nn.Linear(config.vision["embed_dim"], config.text["hidden_size"])
        self.post_init()

    def gradient_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
        super().gradient_checkpointing_enable(*args, **kwargs)
        self.vision.set_grad_checkpointing(True)

    def get_input_embeddings(self) -> Any:
        return self.llm.get_input_embeddings()

    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor,
        attention_mask: Any = None,
        labels: Any = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        pieces = [self.vision.forward_features(piece)[:, 1:] for piece in pixel_values.split(1)]
        embeds = self.llm.get_input_embeddings()(input_ids).clone()
        embeds[input_ids == self.config.image_token] = self.resampler(torch.cat(pieces)).flatten(0, 1)
        output: CausalLMOutputWithPast = self.llm(
            inputs_embeds=embeds, attention_mask=attention_mask, labels=labels
        )
        return output
