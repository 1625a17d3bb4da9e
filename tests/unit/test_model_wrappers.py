"""Which modules of a user's own call a tower of the model inside them, read from their forwards."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

wrappers: Any = importlib.import_module("vlmpatch.patches._shared.model_wrappers")


class Module:
    """What a search needs of ``torch.nn.Module``."""

    def __init__(self, **children: Any) -> None:
        vars(self).update(children)
        self._children = children

    def parameters(self) -> Iterator[Any]:
        yield object()

    def children(self) -> list[Any]:
        return [*self._children.values()]

    def named_children(self) -> list[tuple[str, Any]]:
        return [*self._children.items()]

    def modules(self) -> Iterator[Any]:
        yield self
        for child in self.children():
            yield from child.modules()


class Model(Module):
    """Runs its tower where there are pixels, as models of transformers do."""

    __module__ = "transformers.models.some.modeling_some"

    def __init__(self) -> None:
        super().__init__(language_model=Module(), visual=Module())

    def get_input_embeddings(self) -> Any:
        return self._children["language_model"]

    def get_output_embeddings(self) -> Any:
        return None

    def get_image_features(self, pixel_values: Any) -> Any: ...

    def forward(self, input_ids: Any = None, pixel_values: Any = None, inputs_embeds: Any = None) -> Any:
        embeds = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        if pixel_values is not None:
            return self.get_image_features(pixel_values) + embeds
        return embeds


class Wrapper(Module):
    """A user's own, around a model."""

    def __init__(self) -> None:
        super().__init__(model=Model())
        self.model: Any


class Asks(Wrapper):
    def forward(self, **batch: Any) -> Any:
        return self.model(**batch), self.model.get_image_features(batch["pixel_values"])


class AsksByAMethod(Wrapper):
    @property
    def seen(self) -> Any:
        return [image for image in map(self.model.visual, range(2))]

    def forward(self, **batch: Any) -> Any:
        return self.model(**batch), self._loss()

    def _loss(self) -> Any:
        return sum(self.seen)


class Inherits(Asks):
    def forward(self, **batch: Any) -> Any:
        return super().forward(**batch)


class Overrides(Asks):
    def forward(self, **batch: Any) -> Any:
        return self.model(**batch)


class HandsOn(Wrapper):
    def forward(self, **batch: Any) -> Any:
        return self.model(**batch)

    def images(self, pixel_values: Any) -> Any:
        """For others: the forward does not call it."""
        return self.model.get_image_features(pixel_values)


class AroundNone(Module):
    def forward(self, **batch: Any) -> Any:
        return self.visual(**batch)  # type: ignore[attr-defined]


@pytest.mark.parametrize("cls", [Asks, AsksByAMethod, Inherits])
def test_a_wrapper_whose_forward_calls_a_tower_is_found(cls: type[Wrapper]) -> None:
    wrapper = cls()
    assert wrappers.wrapper_in(Module(inner=wrapper)) is wrapper
    assert wrappers.models_in(wrapper) == [wrapper.model]


@pytest.mark.parametrize("cls", [Overrides, HandsOn])
def test_one_that_hands_on_to_the_model_is_none(cls: type[Wrapper]) -> None:
    assert wrappers.wrapper_in(cls()) is None


def test_a_module_around_no_model_is_none() -> None:
    assert wrappers.wrapper_in(AroundNone(visual=Module())) is None


def test_the_model_itself_and_its_subclasses_are_none() -> None:
    class Own(Model):
        __module__ = "of_a_user"

        def forward(self, input_ids: Any = None, pixel_values: Any = None, inputs_embeds: Any = None) -> Any:
            embeds = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
            return embeds if pixel_values is None else embeds + self.get_image_features(pixel_values)

    assert wrappers.wrapper_in(Model()) is None
    assert wrappers.wrapper_in(Own()) is None


class OfOthers(Module):
    """A model in code of others, of LLaVA's parts."""

    __module__ = "transformers_modules.some.modeling_some"

    def __init__(self) -> None:
        super().__init__(language_model=Module(), vision_tower=Module(), multi_modal_projector=Module())

    def forward(self, input_ids: Any = None, pixel_values: Any = None) -> Any:
        return input_ids if pixel_values is None else self._seen(pixel_values)

    def _seen(self, pixel_values: Any) -> Any:
        return self.multi_modal_projector(self.vision_tower(pixel_values))  # type: ignore[attr-defined]


def test_a_model_of_others_is_found_by_what_its_forward_runs() -> None:
    model = OfOthers()
    assert wrappers.wrapper_in(Module(inner=model)) is model
    assert {*wrappers.own_towers(model)} == {"vision_tower", "multi_modal_projector"}


def test_one_that_is_given_no_pixels_or_runs_no_tower_is_none() -> None:
    class Text(OfOthers):
        def forward(self, input_ids: Any = None, images: Any = None) -> Any:
            return self._seen(images)

    class Elsewhere(OfOthers):
        def forward(self, input_ids: Any = None, pixel_values: Any = None) -> Any:
            return input_ids

    class OfALibrary(Module):
        __module__ = "transformers.models.some.modeling_some"
        forward, _seen = OfOthers.forward, OfOthers._seen

    parts = {"vision_tower": Module(), "multi_modal_projector": Module()}
    assert not any(map(wrappers.own_towers, (Text(), Elsewhere(), OfALibrary(**parts))))


class PreTrainedModel(Module):
    """What a model of transformers is known by."""


class Language(PreTrainedModel):
    def forward(self, input_ids: Any = None, inputs_embeds: Any = None) -> Any:
        return inputs_embeds


class Bridge(Module):
    """A model in code of others, by names of its own, in front of a language model of transformers."""

    def __init__(self) -> None:
        made = {"llm": Language(), "eyes": Module(), "bridge": Module(), "head": Module(), "ears": Module()}
        super().__init__(**made)
        self.llm: Any
        self.eyes: Any
        self.bridge: Any
        self.head: Any

    def forward(self, words: Any, images: Any = None) -> Any:
        embeds = self.llm.embed(words)
        if images is not None:
            embeds = embeds + self.seen(images)
        return self.head(self.llm(inputs_embeds=embeds))

    def seen(self, images: Any) -> Any:
        return self.bridge([self.eyes(image) for image in images])


def test_of_a_model_in_front_of_another_the_towers_are_what_runs_before_that() -> None:
    model = Bridge()
    assert wrappers.wrapper_in(Module(inner=model)) is model
    assert {*wrappers.own_towers(model)} == {"eyes", "bridge"}


def test_without_pictures_embeddings_or_a_language_model_there_are_none() -> None:
    class Words(Bridge):
        """A prompt that is trained."""

        def forward(self, words: Any) -> Any:  # type: ignore[override]
            return self.llm(inputs_embeds=self.bridge(words))

    class Ids(Bridge):
        def forward(self, words: Any, images: Any = None) -> Any:
            return self.llm(words) + self.bridge(images)

    class After(Bridge):
        """Around a model that has its towers inside."""

        def forward(self, words: Any, images: Any = None) -> Any:
            return self.head(self.llm(inputs_embeds=words, pixel_values=images))

    class NoLanguage(Bridge):
        def forward(self, words: Any, images: Any = None) -> Any:
            return self.head(inputs_embeds=self.bridge(images))

    assert not any(map(wrappers.own_towers, (Words(), Ids(), After(), NoLanguage())))


def test_of_two_models_that_take_embeddings_the_first_is_a_tower() -> None:
    class Queried(Bridge):
        def __init__(self) -> None:
            super().__init__()
            self._children["former"] = Language()

        def forward(self, words: Any, images: Any = None) -> Any:
            seen = self.former(inputs_embeds=images)  # type: ignore[attr-defined]
            return self.llm(inputs_embeds=words + seen)

    assert wrappers.own_towers(Queried()) == ["former"]


class Tuner(Module):
    __module__ = "peft.tuners.lora.model"


def test_a_model_is_called_by_what_calls_its_forward_too() -> None:
    model = Bridge()
    tuner = Tuner(model=model)
    root = Module(base_model=tuner)
    assert wrappers.called_as(model, root) == [tuner, model]
    assert wrappers.called_as(model, Module(inner=model)) == [model]
