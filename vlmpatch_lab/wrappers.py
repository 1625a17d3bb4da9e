"""Modules of a user's own around a vision-language model: they ask its tower for more than it does itself.

For a text they do not. What they ask for becomes a second loss beside the model's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers.modeling_outputs import CausalLMOutput

WEIGHT = 0.1  # of the second loss


class After(torch.nn.Module):  # type: ignore[misc]
    """A head over the features of the images, after the model's own forward."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.width = model.get_input_embeddings().weight.shape[1]
        layers = torch.nn.Linear(self.width, 8), torch.nn.GELU(), torch.nn.Linear(8, 4)
        self.head = torch.nn.Sequential(*layers)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.model = model

    def forward(self, **batch: Any) -> Any:
        outputs = self.model(**batch)
        if "pixel_values" in batch:
            outputs.loss = outputs.loss + self.second(self.features(batch))
        return outputs

    def second(self, features: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = WEIGHT * self.scale[0] * self.head(features).square().mean()
        return found

    def features(self, batch: dict[str, Any]) -> torch.Tensor:
        """What the language model would get of the images, of shape [tokens, width]."""
        grid = {"image_grid_thw": batch["image_grid_thw"]} if "image_grid_thw" in batch else {}
        if hasattr(self.model, "get_image_features"):
            found = self.model.get_image_features(batch["pixel_values"], **grid)
        elif hasattr(self.model, "visual"):  # Qwen2-VL before transformers 4.49
            pixels = batch["pixel_values"].type(self.model.visual.get_dtype())
            found = self.model.visual(pixels, grid_thw=batch["image_grid_thw"])
        else:  # LLaVA before 4.46
            seen = self.model.vision_tower(batch["pixel_values"], output_hidden_states=True)
            found = self.model.multi_modal_projector(seen.hidden_states[-1])
        found = getattr(found, "pooler_output", found)
        parts = found if isinstance(found, (list, tuple)) else [found]
        return torch.cat([part.reshape(-1, self.width) for part in parts])


class Before(After):
    """The features first; the head over them before the model's forward, and once more after it."""

    def forward(self, **batch: Any) -> Any:
        seen = self.features(batch) if "pixel_values" in batch else None
        first = None if seen is None else self.second(seen)
        outputs = self.model(**batch)
        if seen is not None:
            outputs.loss = outputs.loss + first + self.second(seen.roll(1, 0))
        return outputs


class Several(After):
    """As often as a row says, of which one is a target that learns nothing."""

    def forward(self, **batch: Any) -> Any:
        outputs = self.model(**batch)
        if "pixel_values" in batch:
            with torch.no_grad():
                target = self.head(self.features(batch)).mean()
            for turn in range(int(batch["input_ids"].sum()) % 3):
                found = self.head(self.features({**batch, "pixel_values": batch["pixel_values"] + turn}))
                outputs.loss = outputs.loss + WEIGHT * (found.mean() - target).square()
        return outputs


class Embedded(After):
    """The text embedded by the wrapper, which adds the mean of the images to every word."""

    def forward(self, **batch: Any) -> Any:
        text = self.model.get_input_embeddings()(batch["input_ids"])
        if "pixel_values" in batch:
            text = text + self.features(batch).mean(0)
        kept = {name: batch[name] for name in ("attention_mask", "labels") if name in batch}
        return self.model(inputs_embeds=text, **kept)


class Detached(After):
    """Features that lead to a gradient, of which the second loss takes none."""

    def second(self, features: torch.Tensor) -> torch.Tensor:
        return super().second(features.detach())


class Assembled(torch.nn.Module):  # type: ignore[misc]
    """A model in code of one's own, of LLaVA's parts, which does for them what tuning asks of a model."""

    prepare_inputs_for_generation = None  # PEFT looks for it

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.config = model.config
        # Of its own no weight is left that no image trains: its optimizer would decay it.
        tower = model.model.vision_tower
        tower = getattr(tower, "vision_model", tower)  # transformers 5.2x has nothing between
        del tower.encoder.layers[-1:]
        tower.post_layernorm = torch.nn.Identity()

    def gradient_checkpointing_enable(self, *arguments: Any) -> None:
        for part in self.of_transformers():
            part.gradient_checkpointing_enable(*arguments)

    def enable_input_require_grads(self) -> None:
        for part in self.of_transformers():
            part.enable_input_require_grads()

    def of_transformers(self) -> list[Any]:
        return [part for part in self.children() if isinstance(part, transformers.PreTrainedModel)]

    def put(self, features: Any, ids: Any, embeds: Any) -> Any:
        """``features`` in place of the words that stand for images."""
        places = (ids == self.config.image_token_id)[..., None].expand_as(embeds)
        return embeds.masked_scatter(places, features.to(embeds.dtype))


class Own(Assembled):
    """By the names that its parts have in LLaVA: it runs its tower where there are pixels."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.lm_head = model.lm_head
        self.vision_tower = model.model.vision_tower
        self.multi_modal_projector = model.model.multi_modal_projector
        self.language_model = model.model.language_model

    def forward(
        self,
        input_ids: Any = None,
        pixel_values: Any = None,
        labels: Any = None,
        attention_mask: Any = None,
        **more: Any,
    ) -> Any:
        embeds = self.language_model.get_input_embeddings()(input_ids)
        if pixel_values is not None:
            seen = self.vision_tower(pixel_values).last_hidden_state
            embeds = self.put(self.multi_modal_projector(seen[:, 1:]), input_ids, embeds)
        hidden = self.language_model(inputs_embeds=embeds, attention_mask=attention_mask).last_hidden_state
        logits = self.lm_head(hidden)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)


class Bridge(Assembled):
    """By names of its own, in front of a whole model of text, whose loss is its own."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.eyes = model.model.vision_tower
        self.bridge = model.model.multi_modal_projector
        self.llm = transformers.LlamaForCausalLM(model.config.text_config)
        self.llm.model, self.llm.lm_head = model.model.language_model, model.lm_head

    def forward(self, input_ids: Any, pixel_values: Any = None, **batch: Any) -> Any:
        embeds = self.llm.get_input_embeddings()(input_ids)
        if pixel_values is not None:
            embeds = self.put(self.seen(pixel_values), input_ids, embeds)
        kept = {name: batch[name] for name in ("attention_mask", "labels") if name in batch}
        return self.llm(inputs_embeds=embeds, **kept)

    def seen(self, pixel_values: Any) -> Any:
        return self.bridge(self.eyes(pixel_values).last_hidden_state[:, 1:])


class BridgeOfIds(Bridge):
    """The same, which leaves it to the model to embed a text."""

    def forward(self, input_ids: Any, pixel_values: Any = None, **batch: Any) -> Any:
        if pixel_values is not None:
            return super().forward(input_ids, pixel_values, **batch)
        kept = {name: batch[name] for name in ("attention_mask", "labels") if name in batch}
        return self.llm(input_ids, **kept)


WRAPPERS: dict[str, Callable[[Any], torch.nn.Module]] = {
    "wrapper": After,
    "wrapper-before": Before,
    "wrapper-several": Several,
    "wrapper-embedded": Embedded,
    "wrapper-detached": Detached,
    "wrapper-own": Own,
    "wrapper-bridge": Bridge,
    "wrapper-bridge-ids": BridgeOfIds,
}
# LoRA around the module of the user's own, not around the model in it.
TUNED: dict[str, Callable[[Any], torch.nn.Module]] = {
    "wrapper-own-tuned": Own,
    "wrapper-bridge-tuned": Bridge,
}
