"""The parts of the patches for mixed batches that need no torch."""

from __future__ import annotations

import functools
import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

batches: Any = importlib.import_module("vlmpatch.patches.transformers.batches_without_images")
blank: Any = importlib.import_module("vlmpatch.patches._shared.blank_image")
towers: Any = importlib.import_module("vlmpatch.patches._shared.towers")
blank_audio: Any = importlib.import_module("vlmpatch.patches._shared.blank_audio")
unused: Any = importlib.import_module("vlmpatch.patches.transformers.unused_under_checkpointing")
unused_parts: Any = importlib.import_module("vlmpatch.patches._shared.unused_parts")
silent: Any = importlib.import_module("vlmpatch.patches.minicpmv.minicpmo_silent_batches")
groups: Any = importlib.import_module("vlmpatch.patches.minicpmv.minicpmv_slice_groups")


class Vision:
    def forward(self, input_ids=None, inputs_embeds=None, pixel_values=None, pixel_values_videos=None):  # type: ignore[no-untyped-def]
        if inputs_embeds is None:
            inputs_embeds = self.get_input_embeddings()(input_ids)  # type: ignore[attr-defined]
        if pixel_values is not None:
            self.get_image_features(pixel_values)  # type: ignore[attr-defined]
        return inputs_embeds


class Omni:
    def forward(self, input_ids=None, inputs_embeds=None, pixel_values=None, input_features=None):  # type: ignore[no-untyped-def]
        inputs_embeds = self.get_input_embeddings()(input_ids)  # type: ignore[attr-defined]
        if input_features is not None:
            self.get_audio_features(input_features)  # type: ignore[attr-defined]
        if pixel_values is not None:
            self.get_image_features(pixel_values)  # type: ignore[attr-defined]
        return self.language_model(inputs_embeds=inputs_embeds)  # type: ignore[attr-defined]


class Hears:
    def forward(self, input_ids=None, inputs_embeds=None, input_features=None):  # type: ignore[no-untyped-def]
        inputs_embeds = self.get_input_embeddings()(input_ids)  # type: ignore[attr-defined]
        if input_features is not None:
            self.get_audio_features(input_features)  # type: ignore[attr-defined]
        return self.language_model(inputs_embeds=inputs_embeds)  # type: ignore[attr-defined]


class SpeechRecognition:
    """As Whisper: what it hears comes first, and always."""

    def forward(self, input_features, decoder_input_ids=None, decoder_inputs_embeds=None):  # type: ignore[no-untyped-def]
        heard = self.encoder(input_features)  # type: ignore[attr-defined]
        return self.decoder(decoder_input_ids, heard)  # type: ignore[attr-defined]


class ImageFirst:
    def forward(self, pixel_values, input_ids=None, inputs_embeds=None):  # type: ignore[no-untyped-def]
        features = self.get_image_features(pixel_values)  # type: ignore[attr-defined]
        return features, self.get_input_embeddings()(input_ids)  # type: ignore[attr-defined]


class DualEncoder:
    def forward(self, input_ids=None, pixel_values=None):  # type: ignore[no-untyped-def]
        return self.get_text_features(input_ids), self.get_image_features(pixel_values)  # type: ignore[attr-defined]


class Text:
    def forward(self, input_ids=None, inputs_embeds=None):  # type: ignore[no-untyped-def]
        return self.embed_tokens(input_ids)  # type: ignore[attr-defined]


class Whole:
    """Hands everything to the model inside it, as ``ForConditionalGeneration`` does."""

    def forward(self, input_ids=None, inputs_embeds=None, pixel_values=None, **kwargs):  # type: ignore[no-untyped-def]
        return self.model(input_ids, inputs_embeds=inputs_embeds, pixel_values=pixel_values)  # type: ignore[attr-defined]


class Crosses:
    def forward(self, input_ids=None, pixel_values=None, cross_attention_states=None, inputs_embeds=None):  # type: ignore[no-untyped-def]
        if pixel_values is not None:
            cross_attention_states = self.vision_model(pixel_values)  # type: ignore[attr-defined]
        return self.language_model(input_ids, cross_attention_states=cross_attention_states)  # type: ignore[attr-defined]


class TextOfCrosses:
    def forward(self, input_ids=None, cross_attention_states=None, inputs_embeds=None):  # type: ignore[no-untyped-def]
        return self.layers(input_ids, cross_attention_states)  # type: ignore[attr-defined]


def test_a_model_that_skips_its_tower_is_recognised_by_its_forward() -> None:
    (images,) = towers.path_of(Vision).modalities
    assert images.given == ("pixel_values", "pixel_values_videos")


@pytest.mark.parametrize(
    ("module", "known"), [("transformers.models.idefics3", True), ("own.idefics3", False)]
)
def test_a_connector_is_known_in_the_code_of_transformers_alone(module: str, known: bool) -> None:
    def forward(self, input_ids=None, inputs_embeds=None, pixel_values=None):  # type: ignore[no-untyped-def]
        text = self.text_model.get_input_embeddings()(input_ids)
        return text, self.connector(self.vision_model(pixel_values=pixel_values))

    cls = type("Idefics3Model", (), {"forward": forward, "__module__": module})
    assert (towers.path_of(cls) is not None) is known


def test_towers_are_known_in_the_order_of_the_forward() -> None:
    path = towers.path_of(Omni)
    assert [modality.name for modality in path.modalities] == ["sound", "image"]
    assert path.late
    assert not path.once
    alone = towers.path_of(Hears)
    assert [modality.given for modality in alone.modalities] == [("input_features",)]
    assert alone.once
    assert not alone.late


class EmbedsAgain:
    """Granite Speech: a method of its embeds the text once more."""

    def forward(self, input_ids=None, inputs_embeds=None, input_features=None):  # type: ignore[no-untyped-def]
        text = self.get_input_embeddings()(input_ids)  # type: ignore[attr-defined]
        if input_features is not None:
            text = self.merged(input_ids, self.get_audio_features(input_features))  # type: ignore
        return text

    def merged(self, input_ids, heard):  # type: ignore[no-untyped-def]
        return self.get_input_embeddings()(input_ids).masked_scatter(input_ids == 1, heard)  # type: ignore[attr-defined]


class EmbedsAToken:
    """Idefics3: the text is embedded once, and a token where there is no text."""

    def forward(self, input_ids=None, inputs_embeds=None, pixel_values=None):  # type: ignore[no-untyped-def]
        text = self.get_input_embeddings()(input_ids)  # type: ignore[attr-defined]
        if pixel_values is not None:
            text = self.merged(input_ids, text, self.get_image_features(pixel_values))  # type: ignore
        return text

    def merged(self, input_ids, inputs_embeds, seen):  # type: ignore[no-untyped-def]
        token = None if input_ids is not None else self.get_input_embeddings()(1)  # type: ignore[attr-defined]
        return inputs_embeds.masked_scatter(token, seen)


@pytest.mark.parametrize(("cls", "again"), [(EmbedsAgain, True), (EmbedsAToken, False)])
def test_which_embed_the_text_once_more(cls: type, again: bool) -> None:
    assert towers.path_of(cls).again is again


@pytest.mark.parametrize(
    "innocent", [ImageFirst, DualEncoder, Text, Whole, SpeechRecognition, type("Own", (Omni,), {}), Crosses]
)
def test_no_other_class_is(innocent: type) -> None:
    assert towers.path_of(innocent) is None


@pytest.mark.parametrize(
    "cls", [Vision, ImageFirst, DualEncoder, Text, Whole, TextOfCrosses, type("Own", (Crosses,), {})]
)
def test_a_model_that_leaves_layers_out_is_told_from_all_others(cls: type) -> None:
    assert batches.leaves_layers_out(Crosses)
    assert not batches.leaves_layers_out(cls)


class PutsALineBetween:
    """LLaVA-NeXT since transformers 4.52, behind a decorator."""

    @functools.wraps(lambda self, pixel_values: self.pack(pixel_values, self.image_newline))
    def get_image_features(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        return self.wrapped(*args, **kwargs)  # type: ignore[attr-defined]


def test_what_a_model_puts_between_its_features_is_found_in_the_method_that_does_so() -> None:
    own = [("image_newline", "a parameter"), ("scale", "another"), ("wrapped", "a third")]
    model = SimpleNamespace(named_parameters=lambda recurse: [] if recurse else own)
    code = towers.method_code(PutsALineBetween, "get_image_features")
    assert batches._own_parameters(model, code) == ["a parameter"]
    assert batches._own_parameters(model, towers.method_code(PutsALineBetween, "get_video_features")) == []


def test_sizes_are_given_to_a_model_that_asks_for_them() -> None:
    def llava(pixel_values: Any, image_sizes: Any = None) -> None: ...

    def llava_next(pixel_values: Any, image_sizes: Any) -> None: ...

    assert blank._asked(llava) == {"pixel_values"}
    assert blank._asked(llava_next) == {"pixel_values", "image_sizes"}


@pytest.mark.parametrize(
    ("audio", "width", "frames"),
    [
        ({"num_mel_bins": 128, "n_window": 100, "max_source_positions": 1500}, 128, 200),  # Qwen2.5-Omni
        ({"num_mel_bins": 128, "max_source_positions": 1500}, 128, 3000),  # Qwen2-Audio, Voxtral
        ({"input_feat_size": 128}, 128, 64),  # Gemma 3n
        ({"input_dim": 160, "num_mel_bins": 160}, 160, 64),  # Granite Speech
        ({"subsampling_conv_channels": [128, 32]}, 128, 64),  # Gemma 4
    ],
)
def test_the_smallest_sound_a_model_accepts(audio: dict[str, Any], width: int, frames: int) -> None:
    config = SimpleNamespace(**audio)
    assert (blank_audio._width(config), blank_audio._frames(config)) == (width, frames)


RULE = """
class Trainer:
    def _wrap_model(self, model):
        kwargs["find_unused_parameters"] = not model.is_gradient_checkpointing
"""


def test_the_rule_is_looked_for() -> None:
    assert unused.look(api.Code("m", "m.py", RULE)) is None
    fixed = RULE.replace("not model.is_gradient_checkpointing", "True")
    assert "whatever the checkpointing" in unused.look(api.Code("m", "m.py", fixed))
    with pytest.raises(api.Unrecognised):
        unused.look(api.Code("m", "m.py", "pass"))


class Model:
    def __init__(self, config: Any, *names: str) -> None:
        self.config = config
        self.names = names

    def named_parameters(self) -> Any:
        return [(name, SimpleNamespace(requires_grad=True)) for name in self.names]

    def modules(self) -> Any:
        return []


def search(arguments: dict[str, Any], *names: str, **config: Any) -> bool:
    trainer = SimpleNamespace(args=SimpleNamespace(**arguments))
    handler = SimpleNamespace(find_unused_parameters=False)
    patch = api.Patch("unused-under-checkpointing", Journal())
    unused._search(patch, trainer, Model(SimpleNamespace(**config), *names), handler)
    found: bool = handler.find_unused_parameters
    return found


@pytest.fixture(autouse=True)
def no_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unused_parts, "sparse_blocks", lambda model: iter(()))


def test_the_search_stays_on_for_a_trained_tower() -> None:
    assert search({}, "model.vision_tower.weight", vision_config={})


def test_what_the_user_said_stands() -> None:
    assert not search({"ddp_find_unused_parameters": False}, "model.vision_tower.weight", vision_config={})


def test_reentrant_checkpointing_cannot_have_it() -> None:
    said = {"gradient_checkpointing_kwargs": {"use_reentrant": True}}
    assert not search(said, "model.vision_tower.weight", vision_config={})


def around(function: Any) -> Any:
    """As LLaMA-Factory puts its own around a block's."""
    return functools.wraps(function, assigned=("__doc__",))(lambda *args: function(*args))


@pytest.mark.parametrize("handed", [lambda function: function, around])
@pytest.mark.parametrize(
    ("function", "found"),
    [
        (functools.partial(print, use_reentrant=False), True),
        (functools.partial(print, use_reentrant=True), False),
        (print, False),
    ],
)
def test_what_a_block_was_told_is_found(
    handed: Any, function: Any, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = SimpleNamespace(gradient_checkpointing=True, _gradient_checkpointing_func=handed(function))
    monkeypatch.setattr(Model, "modules", lambda self: [block])
    assert search({}, "model.vision_tower.weight", vision_config={}) == found


def test_text_models_and_frozen_towers_do_not_pay_for_it() -> None:
    assert not search({}, "model.layers.0.weight")
    assert not search({}, "model.language_model.layers.0.weight", "lm_head.weight", vision_config={})


@pytest.mark.parametrize("trained", [True, False])
def test_frozen_experts_do_not_pay_for_it(trained: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    block = SimpleNamespace(parameters=lambda: [SimpleNamespace(requires_grad=trained)])
    monkeypatch.setattr(unused_parts, "sparse_blocks", lambda model: iter([block]))
    assert search({}, "model.layers.0.weight") is trained


class Conv2d:
    """As torch's, by its name."""


class Embedding:
    """The same."""


class Tree:
    """A model by the names of its modules; those of ``trained`` have a parameter that is."""

    def __init__(self, modules: dict[str, Any], *trained: str, text: Any = None) -> None:
        self.named, self.trained, self.text = modules, trained, text
        self.config = SimpleNamespace()

    def named_modules(self) -> Any:
        return [("", self), *self.named.items()]

    def modules(self) -> Any:
        return [module for _, module in self.named_modules()]

    def named_parameters(self) -> Any:
        return [
            (f"{name}.weight", SimpleNamespace(requires_grad=name in self.trained)) for name in self.named
        ]

    def get_submodule(self, place: str) -> Any:
        inside = [name for name in self.named if name == place or name.startswith(f"{place}.")]
        found = [SimpleNamespace(requires_grad=name in self.trained) for name in inside]
        return SimpleNamespace(parameters=lambda: found)

    def get_input_embeddings(self) -> Any:
        if self.text is None:
            raise NotImplementedError
        return self.text


def test_a_tower_is_known_by_what_it_is_where_the_configuration_has_no_name_for_it() -> None:
    text = Embedding()
    ovis = {"llm": Tree({}, text=text), "llm.tokens": text, "eye.vit.patches": Conv2d(), "eye.head": None}
    assert unused_parts.trains_a_tower(Tree(ovis, "eye.head"))  # Ovis: it has no embedding of its own
    assert not unused_parts.trains_a_tower(Tree(ovis, "llm.tokens"))  # a frozen tower
    phi = {"model.tokens": text, "model.images.clip.patches": Conv2d(), "model.layers": None}
    assert unused_parts.trains_a_tower(Tree(phi, "model.images.clip.patches", text=text))
    assert not unused_parts.trains_a_tower(Tree(phi, "model.layers", text=text))


def test_what_reads_no_text_or_sees_no_picture_is_left_alone() -> None:
    patches = Conv2d()
    vit = {"embeddings.patches": patches, "encoder": None}
    assert not unused_parts.trains_a_tower(Tree(vit, "embeddings.patches", "encoder", text=patches))
    detector = {"backbone": patches, "queries": Embedding()}
    assert not unused_parts.trains_a_tower(Tree(detector, "backbone", "queries"))
    text = Embedding()
    assert not unused_parts.trains_a_tower(
        Tree({"tokens": text, "layers": None}, "tokens", "layers", text=text)
    )
    around = {"both": Conv2d(), "both.tokens": text}  # no tower beside the text
    assert not unused_parts.trains_a_tower(Tree(around, "both", "both.tokens", text=text))


class Part:
    """A module of parts; a number is a parameter, trained where it is above zero."""

    def __init__(self, **parts: Any) -> None:
        self.parts = parts
        vars(self).update(parts)
        self.own = [SimpleNamespace(requires_grad=p > 0) for p in parts.values() if isinstance(p, int)]

    def named_children(self) -> Any:
        return [(name, part) for name, part in self.parts.items() if isinstance(part, Part)]

    def modules(self) -> Any:
        return [self, *(inner for _, part in self.named_children() for inner in part.modules())]

    def parameters(self) -> Any:
        return [parameter for module in self.modules() for parameter in module.own]

    def get_input_embeddings(self) -> Any:
        return self.parts["language"].parts["embedding"]

    def get_output_embeddings(self) -> None:
        return None


@pytest.mark.parametrize(
    ("projector", "language", "head", "left"),
    [(1, 0, 0, False), (1, 1, 0, True), (1, 0, 1, True), (0, 1, 0, True)],
)
def test_what_ddp_passes_over_by_itself(
    projector: int, language: int, head: int, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Part(embedding=Part(weight=0), layer=Part(weight=language))
    model = Part(tower=Part(weight=0), projector=Part(weight=projector), language=text)
    whole = Part(model=model, lm_head=Part(weight=head))
    ddp = SimpleNamespace(module=whole, static_graph=False, find_unused_parameters=True)
    monkeypatch.setattr(batches, "running_ddp", lambda parameters: ddp)
    assert batches._left_to_ddp(model) is left
    ddp.find_unused_parameters = False
    assert not batches._left_to_ddp(model)
    monkeypatch.setattr(batches, "running_ddp", lambda parameters: None)
    assert not batches._left_to_ddp(model)


MINICPMV = """
class MiniCPMV(Base):
    def __init__(self, config): ...
    def get_vllm_embedding(self, data):
        for start in range(0, n, self.config.vision_batch_size):
            self.vpm(pixels)
        self.resampler(hidden)
"""


def test_slice_groups_are_looked_for() -> None:
    assert groups.look(api.Code("m", "m.py", MINICPMV)) is None
    once = MINICPMV.replace("vision_batch_size", "other")
    assert "once" in groups.look(api.Code("m", "m.py", once))
    assert groups.look(api.Code("m", "m.py", "class Other: ...")) is not None


MINICPMO = """
class MiniCPMO(Base):
    def __init__(self, config): ...
    def get_audio_embedding(self, data, chunk_length=-1):
        if len(data["audio_features"]) > 0:
            return self.audio_projection_layer(self.apm(data["audio_features"]))
        return []
    def get_omni_embedding(self, data, input_embeddings, chunk_length=-1):
        audio_embeddings = self.get_audio_embedding(data, chunk_length)
        if len(data["audio_features"]) > 0:
            pass
        elif self.training:
            for i in range(bs):
                input_embeddings += audio_embeddings[0].mean() * 0
        return input_embeddings
"""


def test_silent_batches_are_looked_for() -> None:
    assert silent.look(api.Code("m", "m.py", MINICPMO)) is None
    asks = MINICPMO.replace("for i in range(bs)", "if audio_embeddings")
    assert "itself" in silent.look(api.Code("m", "m.py", asks))
    assert "hears nothing" in silent.look(api.Code("m", "m.py", MINICPMV.replace("MiniCPMV", "MiniCPMO")))
    assert "another tower" in silent.look(api.Code("m", "m.py", MINICPMO.replace("self.apm(", "self.ears(")))
    assert silent.look(api.Code("m", "m.py", "class Other: ...")) is not None


@pytest.fixture
def hearing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A way to have a batch heard by a model whose tower is held as said, beside ranks that hear or not."""

    def hear(data: list[int], held: str, beside: int = 0, training: bool = True, **more: Any) -> Any:
        monkeypatch.setattr(silent, "_silence", lambda *_: {"audio_features": [0]})
        monkeypatch.setattr(silent, "sharding", lambda _: held)
        monkeypatch.setattr(silent, "waiting_groups", lambda _: [held] if held else [])
        monkeypatch.setattr(silent, "world", lambda: 2)
        monkeypatch.setattr(silent, "largest", lambda own, groups, device: max(own, beside))
        asked: list[Any] = []

        class Model:
            apm = audio_projection_layer = None

            def __init__(self) -> None:
                self.training = training

            def get_audio_embedding(self, data: Any, chunk_length: float = -1, dummy: bool = True) -> Any:
                asked.append(data["audio_features"])
                silence = ["its own"] if self.training and dummy else []
                return [[data["audio_features"]]] if data["audio_features"] else silence

        model = Model()
        silent.apply(api.Patch("test", Journal()), SimpleNamespace(MiniCPMO=Model))
        text = SimpleNamespace(device="cpu")
        got = model.get_audio_embedding({"audio_features": data, "input_ids": text}, **more)
        return got, asked

    return hear


def test_silence_goes_the_way_of_a_sound_where_weights_are_gathered(hearing: Any) -> None:
    assert hearing([], silent.ZERO3) == ([[0]], [[0]])
    assert hearing([], silent.ZERO3, dummy=False) == ([], [[]])
    assert hearing([], "") == (["its own"], [[]])
    assert hearing([7], silent.ZERO3) == ([[[7]]], [[7]])


def test_an_evaluation_hears_silence_where_another_rank_hears(hearing: Any) -> None:
    assert hearing([], silent.ZERO3, beside=1, training=False) == ([], [[0], []])
    assert hearing([], silent.ZERO3, beside=0, training=False) == ([], [[]])
    assert hearing([], "", beside=1, training=False) == ([], [[]])
    assert hearing([7], silent.ZERO3, beside=0, training=False) == ([[[7]]], [[7]])
