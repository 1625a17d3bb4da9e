"""The stand-in for MiniCPM-o: it sees as MiniCPM-V does, and hears by Whisper's encoder.

What matters here is what each rank runs and reads for a batch: the tower of images in groups of slices, that
of sounds once; for a batch without a sound, in training, the latter on silence. Where there is a sound
``get_audio_embedding`` reads a weight of ``apm.conv1`` first, and without one a weight of
``apm.embed_positions``: under ZeRO-3 each of them is a gather. Revisions of January 2025 have no silence, and
read what it would have given all the same.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen2ForCausalLM, Qwen2PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from .configuration_minicpm import MiniCPMOConfig
from .modeling_navit_siglip import SiglipVisionTransformer

SILENCE = (1, 80, 100)  # sounds, bands, frames


class Resampler(nn.Module):
    """As many tokens of every slice as there are queries."""

    def __init__(self, num_queries: int, embed_dim: int, num_heads: int, kv_dim: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(num_queries, embed_dim))
        self.kv_proj = nn.Linear(kv_dim, embed_dim, bias=False)
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
        self.ln_post = nn.LayerNorm(embed_dim)

    def forward(self, hidden: torch.Tensor, tgt_sizes: torch.Tensor) -> torch.Tensor:
        seen = self.kv_proj(hidden)
        counts = (tgt_sizes[:, 0] * tgt_sizes[:, 1]).to(hidden.device)
        padded = torch.arange(seen.shape[1], device=hidden.device)[None] >= counts[:, None]
        queries = self.query[None].expand(len(seen), -1, -1)
        return self.ln_post(self.attn(queries, seen, seen, key_padding_mask=padded)[0])


class MultiModalProjector(nn.Module):
    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(in_dim, out_dim)
        self.relu = nn.ReLU()
        self.linear2 = nn.Linear(out_dim, out_dim)

    def forward(self, audio_features: torch.Tensor) -> torch.Tensor:
        return self.linear2(self.relu(self.linear1(audio_features)))


class WhisperSelfAttention(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.k_proj = nn.Linear(size, size, bias=False)
        self.v_proj, self.q_proj, self.out_proj = (nn.Linear(size, size) for _ in range(3))

    def forward(self, hidden_states: torch.Tensor, attention_mask: Any) -> torch.Tensor:
        parts = (self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states))
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attention_mask)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class MiniCPMWhisperEncoderLayer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self_attn = WhisperSelfAttention(config.d_model, config.encoder_attention_heads)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.fc1 = nn.Linear(config.d_model, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Any) -> tuple[torch.Tensor]:
        hidden_states = hidden_states + self.self_attn(
            self.self_attn_layer_norm(hidden_states), attention_mask
        )
        inner = nn.functional.gelu(self.fc1(self.final_layer_norm(hidden_states)))
        return (hidden_states + self.fc2(inner),)


class MiniCPMWhisperEncoder(WhisperEncoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList(MiniCPMWhisperEncoderLayer(config) for _ in range(config.encoder_layers))

    def forward(
        self, input_features: torch.Tensor, attention_mask: Any = None, output_hidden_states: bool = False
    ) -> Any:
        weight = self.conv1.weight
        hidden_states = nn.functional.gelu(self.conv1(input_features.to(weight.device, weight.dtype)))
        hidden_states = nn.functional.gelu(self.conv2(hidden_states)).permute(0, 2, 1)
        hidden_states = hidden_states + self.embed_positions.weight[: hidden_states.shape[1]]
        states = []
        for layer in self.layers:
            states.append(hidden_states)
            if self.gradient_checkpointing and self.training:
                run = self._gradient_checkpointing_func
                hidden_states = run(layer.__call__, hidden_states, attention_mask)[0]
            else:
                hidden_states = layer(hidden_states, attention_mask)[0]
        hidden_states = self.layer_norm(hidden_states)
        all_states = (*states, hidden_states) if output_hidden_states else None
        return BaseModelOutputWithPast(last_hidden_state=hidden_states, hidden_states=all_states)


class MiniCPMOPreTrainedModel(Qwen2PreTrainedModel):
    config_class = MiniCPMOConfig


class MiniCPMO(MiniCPMOPreTrainedModel):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.llm = Qwen2ForCausalLM(config)
        self.embed_dim = self.llm.config.hidden_size
        self.vpm = self.init_vision_module()
        self.resampler = Resampler(
            config.query_num, self.embed_dim, self.embed_dim // 128, self.vpm.embeddings.embed_dim
        )
        self.apm = MiniCPMWhisperEncoder(config.audio_config)
        self.audio_avg_pooler = nn.AvgPool1d(config.audio_pool_step, stride=config.audio_pool_step)
        self.audio_projection_layer = MultiModalProjector(
            self.apm.config.encoder_ffn_dim // 4, self.embed_dim
        )
        self.audio_encoder_layer = -1
        self.post_init()  # which the real code lacks: minicpmv-missing-post-init has a stand-in of its own

    def init_vision_module(self) -> Any:
        self.config.vision_config._attn_implementation = "eager"
        model = SiglipVisionTransformer(self.config.vision_config)
        if self.config.drop_vision_last_layer:
            model.encoder.layers = model.encoder.layers[:-1]
        return model

    def get_input_embeddings(self) -> Any:
        return self.llm.get_input_embeddings()

    def set_input_embeddings(self, value: Any) -> None:
        self.llm.set_input_embeddings(value)

    def get_output_embeddings(self) -> Any:
        return self.llm.lm_head

    def get_decoder(self) -> Any:
        return self.llm

    def _vision(self, pixels: Any, tgt_sizes: torch.Tensor, dtype: Any, device: Any) -> torch.Tensor:
        mask = torch.zeros(len(pixels), 1, int(tgt_sizes.prod(dim=1).max()), dtype=torch.bool, device=device)
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

    def _no_image(self, dtype: Any, device: Any) -> torch.Tensor:
        side = 4 * self.config.patch_size
        image = torch.zeros((1, 3, side, side), device=device, dtype=dtype)
        return self.resampler(self.vpm(image).last_hidden_state, torch.tensor([[4, 4]]))

    def get_vllm_embedding(self, data: Any) -> Any:
        weight = self.llm.model.embed_tokens.weight
        counts = [len(images) for images in data["pixel_values"]]
        pixels = [i.flatten(end_dim=1).permute(1, 0) for images in data["pixel_values"] for i in images]
        if pixels:
            sizes = torch.vstack([size for size in data["tgt_sizes"] if isinstance(size, torch.Tensor)])
            hidden = [*self._vision(pixels, sizes, weight.dtype, weight.device).split(counts)]
        else:
            hidden = [self._no_image(weight.dtype, weight.device) if self.training else []] * len(counts)
        embedding = self.llm.model.embed_tokens(data["input_ids"])
        new_embedding = embedding.clone()
        for row, features in enumerate(hidden):
            bounds = data["image_bound"][row]
            if len(features) and len(bounds):
                places = torch.cat([torch.arange(int(b[0]), int(b[1])) for b in bounds])
                width = embedding.shape[-1]
                indices = places.view(-1, 1).repeat(1, width).to(embedding.device)
                new_embedding[row] = embedding[row].scatter(0, indices, features.reshape(-1, width))
            elif len(features) and self.training:
                new_embedding[row] += features[0].mean() * 0
        return new_embedding, hidden

    def _heard(self, states: torch.Tensor) -> torch.Tensor:
        projected = self.audio_projection_layer(states).transpose(1, 2)
        return self.audio_avg_pooler(projected).transpose(1, 2)

    def get_audio_embedding(self, data: Any, chunk_length: float = -1, dummy: bool = True) -> list[Any]:
        wavforms, lengths = data.get("audio_features", []), data.get("audio_feature_lens", [])
        if len(wavforms) > 0:
            frames = torch.hstack(lengths)
            longest = (wavforms.shape[-1] - 1) // 2 + 1
            positions = torch.arange(longest, device=frames.device)
            hidden = (positions[None] >= frames[:, None])[:, None, None]
            hidden = hidden.expand(-1, 1, longest, longest)
            attention_mask = hidden.to(self.apm.conv1.weight.device, self.apm.conv1.weight.dtype)
            if chunk_length > 0:
                chunks = positions // int(chunk_length * 50)
                hidden = hidden | (chunks[None] > chunks[:, None])
            attention_mask = attention_mask.masked_fill(hidden, float("-inf"))
            ran = self.apm(wavforms, output_hidden_states=True, attention_mask=attention_mask)
            heard = iter(self._heard(ran.hidden_states[self.audio_encoder_layer]))
            step = self.config.audio_pool_step
            return [
                [next(heard)[: (((int(n) - 1) // 2 + 1) - step) // step + 1] for n in row] for row in lengths
            ]
        elif self.training and dummy:
            weight = self.apm.embed_positions.weight
            ran = self.apm(weight.new_zeros(SILENCE), output_hidden_states=True)
            return [self._heard(ran.hidden_states[self.audio_encoder_layer])]
        return []

    def get_omni_embedding(
        self, data: Any, input_embeddings: torch.Tensor, chunk_length: float = -1
    ) -> torch.Tensor:
        audio_embeddings = self.get_audio_embedding(data, chunk_length)
        if len(data.get("audio_features", [])) > 0:
            for row, (features, bounds) in enumerate(
                zip(audio_embeddings, data["audio_bounds"], strict=True)
            ):
                for embs, bound in zip(features, bounds, strict=False):
                    input_embeddings[row, int(bound[0]) : int(bound[1])] = embs.to(input_embeddings.dtype)
        elif self.training:
            for _ in range(len(input_embeddings)):
                input_embeddings = input_embeddings + audio_embeddings[0].mean() * 0
        return input_embeddings

    def forward(self, data: Any, **kwargs: Any) -> Any:
        embedding, _ = self.get_vllm_embedding(data)
        if self.config.init_audio:
            chunk_length = self.config.audio_chunk_length
            embedding = self.get_omni_embedding(data, input_embeddings=embedding, chunk_length=chunk_length)
        for name in ("input_ids", "inputs_embeds", "position_ids"):
            kwargs.pop(name, None)
        positions = data["position_ids"].long()
        return self.llm(input_ids=None, position_ids=positions, inputs_embeds=embedding, **kwargs)
