"""The stand-in model: SigLIP in groups of slices, a resampler, Qwen2, and no ``post_init()`` of its own."""

import math

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen2ForCausalLM, Qwen2PreTrainedModel

from .configuration_minicpm import MiniCPMVConfig
from .modeling_navit_siglip import SiglipVisionTransformer
from .resampler import Resampler


class MiniCPMVPreTrainedModel(Qwen2PreTrainedModel):
    config_class = MiniCPMVConfig


class MiniCPMV(MiniCPMVPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.llm = Qwen2ForCausalLM(config)
        self.vpm = self.init_vision_module()
        self.vision_dim = self.vpm.embed_dim
        self.embed_dim = self.llm.config.hidden_size
        self.resampler = self.init_resampler(self.embed_dim, self.vision_dim)
        self.processor = None
        self.terminators = ["<|im_end|>", "<|endoftext|>"]

    def init_vision_module(self):
        self.config.vision_config._attn_implementation = "eager"
        model = SiglipVisionTransformer(self.config.vision_config)
        if self.config.drop_vision_last_layer:
            model.encoder.layers = model.encoder.layers[:-1]
        model.embed_dim = model.embeddings.embed_dim
        model.patch_size = model.embeddings.patch_size
        return model

    def init_resampler(self, embed_dim, vision_dim):
        return Resampler(
            num_queries=self.config.query_num,
            embed_dim=embed_dim,
            num_heads=embed_dim // 128,
            kv_dim=vision_dim,
            adaptive=True,
        )

    def get_input_embeddings(self):
        return self.llm.get_input_embeddings()

    def set_input_embeddings(self, value):
        self.llm.embed_tokens = value

    def get_output_embeddings(self):
        return self.llm.lm_head

    def set_output_embeddings(self, new_embeddings):
        self.llm.lm_head = new_embeddings

    def set_decoder(self, decoder):
        self.llm = decoder

    def get_decoder(self):
        return self.llm

    def _vision(self, pixels, tgt_sizes, dtype, device):
        """Slices of different shapes, padded to one; the tower sees ``vision_batch_size`` at a time."""
        longest = int((tgt_sizes[:, 0] * tgt_sizes[:, 1]).max())
        mask = torch.zeros((len(pixels), 1, longest), dtype=torch.bool, device=device)
        for row, (height, width) in enumerate(tgt_sizes.tolist()):
            mask[row, 0, : height * width] = True
        padded = pad_sequence(pixels, batch_first=True).transpose(1, 2)
        padded = padded.reshape(len(pixels), 3, -1, padded.shape[-1]).to(dtype)
        step = self.config.vision_batch_size
        groups = [slice(start, start + step) for start in range(0, len(pixels), step)]
        hidden = [
            self.vpm(padded[g], patch_attention_mask=mask[g], tgt_sizes=tgt_sizes[g]).last_hidden_state
            for g in groups
        ]
        return self.resampler(torch.cat(hidden), tgt_sizes)

    def _no_image(self, dtype, device):
        side = 4 * self.config.patch_size
        image = torch.zeros((1, 3, side, side), device=device, dtype=dtype)
        sizes = torch.tensor([[4, math.ceil(side / self.config.patch_size)]], dtype=torch.int32)
        return self.resampler(self.vpm(image).last_hidden_state, sizes)

    def get_vllm_embedding(self, data):
        if "vision_hidden_states" in data:
            vision_hidden_states = data["vision_hidden_states"]
        else:
            weight = self.llm.model.embed_tokens.weight
            counts = [len(images) for images in data["pixel_values"]]
            pixels = [i.flatten(end_dim=1).permute(1, 0) for images in data["pixel_values"] for i in images]
            if pixels:
                sizes = [size for size in data["tgt_sizes"] if isinstance(size, torch.Tensor)]
                sizes = torch.vstack(sizes).type(torch.int32)
                embedding = self._vision(pixels, sizes, weight.dtype, weight.device)
                vision_hidden_states = list(embedding.split(counts))
            elif self.training:
                vision_hidden_states = [self._no_image(weight.dtype, weight.device)] * len(counts)
            else:
                vision_hidden_states = [[] for _ in counts]

        vllm_embedding = self.llm.model.embed_tokens(data["input_ids"])
        for row, features in enumerate(vision_hidden_states):
            if len(features) == 0:
                continue
            features = features.type(vllm_embedding.dtype)
            current, bounds = vllm_embedding[row], data["image_bound"][row]
            if len(bounds) > 0:
                places = torch.cat([torch.arange(int(b[0]), int(b[1])) for b in bounds]).to(current.device)
                width = current.shape[-1]
                current.scatter_(0, places.view(-1, 1).repeat(1, width), features.reshape(-1, width))
            elif self.training:
                current += features[0].mean() * 0
        return vllm_embedding, vision_hidden_states

    def forward(self, data, **kwargs):
        vllm_embedding, _ = self.get_vllm_embedding(data)
        position_ids = data["position_ids"]
        if position_ids.dtype != torch.int64:
            position_ids = position_ids.long()
        return self.llm(input_ids=None, position_ids=position_ids, inputs_embeds=vllm_embedding, **kwargs)
