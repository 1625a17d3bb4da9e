"""What the patches for the field's failures take for theirs, and what they leave alone."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vlmpatch.api import Patch
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read
from vlmpatch.engine.apply import load
from vlmpatch.journal.journal import Journal

ENTRIES = read(default_path()).entries


def patch_file(id_: str) -> Any:
    module = load(ENTRIES[id_])
    return importlib.import_module(module.__name__)


def upstreams_hook() -> Callable[..., Any]:
    def make_inputs_require_grads(module: Any, input: Any, output: Any) -> None:
        output.requires_grad_(True)

    return make_inputs_require_grads


def hook_of_another_name() -> Callable[..., Any]:
    def watch(module: Any, input: Any, output: Any) -> None:
        output.requires_grad_(True)

    return watch


def hook_that_keeps_the_leaf() -> Callable[..., Any]:
    kept = []

    def make_inputs_require_grads(module: Any, input: Any, output: Any) -> None:
        output.requires_grad_(True)
        kept.append(output)

    return make_inputs_require_grads


@pytest.mark.parametrize(
    ("hook", "taken"),
    [
        (upstreams_hook(), True),
        (hook_of_another_name(), False),
        (hook_that_keeps_the_leaf(), False),
        (print, False),
    ],
)
def test_which_hooks_hand_on_a_copy(hook: Callable[..., Any], taken: bool) -> None:
    assert patch_file("input-grads-leaf")._lets_require_grad(hook) is taken


def takes_nothing_new(self: Any, model: Any, inputs: Any, return_outputs: bool = False) -> None: ...


def takes_the_count(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> None: ...


def takes_anything(self: Any, model: Any, inputs: Any, **kwargs: Any) -> None: ...


@functools.wraps(takes_nothing_new)
def decorated(*args: Any, num_items_in_batch: Any = None) -> Any:
    return args, num_items_in_batch


@pytest.mark.parametrize(
    ("method", "takes"),
    [(takes_nothing_new, False), (takes_the_count, True), (takes_anything, True), (decorated, True)],
)
def test_which_compute_loss_is_called_without_the_count(method: Callable[..., Any], takes: bool) -> None:
    assert patch_file("overridden-compute-loss").takes_count(method) is takes


class Upstream:
    def compute_loss(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        return model(inputs, num_items_in_batch)


class HandsOn(Upstream):
    def compute_loss(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        return super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)


class HandsAllOn(Upstream):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs), "loss"


class Ignores(Upstream):
    def compute_loss(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        return super().compute_loss(model, inputs)


class Divides(Upstream):
    def compute_loss(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        return model(inputs) / num_items_in_batch


class Asks(Upstream):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs.get("num_items_in_batch")


class HandsToAnother(Upstream):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return dict(*args, **kwargs)


class Inherits(Divides):
    """Nothing of its own."""


class Decorated(Upstream):
    compute_loss: Any = decorated


@pytest.mark.parametrize(
    ("cls", "uses"),
    [
        *((cls, False) for cls in (Upstream, HandsOn, HandsAllOn, Ignores)),
        *((cls, True) for cls in (Divides, Asks, HandsToAnother, Inherits, Decorated)),
    ],
)
def test_a_compute_loss_that_uses_the_count(cls: type, uses: bool) -> None:
    losses: Any = importlib.import_module("vlmpatch.patches._shared.compute_losses")
    assert losses.uses_count(cls, Upstream) is uses


def test_a_trainer_in_whose_place_a_script_has_put_another_can_be_made() -> None:
    losses: Any = importlib.import_module("vlmpatch.patches._shared.compute_losses")
    assert isinstance(losses.uses_count(Upstream, HandsOn), bool)


def no_dataset(self: Any) -> None: ...


def a_dataset(self: Any, train_dataset: Any = None) -> None: ...


@pytest.mark.parametrize(
    ("method", "takes"), [(no_dataset, False), (a_dataset, True), (takes_anything, False), (print, True)]
)
def test_which_sampler_is_called_without_the_dataset(method: Callable[..., Any], takes: bool) -> None:
    assert patch_file("overridden-train-sampler").takes_dataset(method) is takes


FORM_4_46 = (
    "self.accelerator.backward(loss)\nif num_items_in_batch is None:\n"
    "return loss.detach() / self.args.gradient_accumulation_steps"
)
FORM_4_49 = (
    "if not self.model_accepts_loss_kwargs and self.compute_loss_func is None:\nloss = loss / 4\n"
    'kwargs["scale_wrt_gas"] = False'
)


@pytest.mark.parametrize(
    ("source", "accepts", "deepspeed", "count", "counted", "wanted"),
    [
        (FORM_4_46, False, False, None, False, (0.25, 1.0)),
        (FORM_4_46, True, False, 9, True, (1.0, 1.0)),
        (FORM_4_46, True, True, 9, True, (4.0, 1.0)),
        (FORM_4_46, False, True, None, False, (1.0, 1.0)),
        (FORM_4_49, False, False, 9, False, (1.0, 1.0)),
        (FORM_4_49, True, True, None, False, (0.25, 0.25)),
        (FORM_4_49, True, True, 9, True, (1.0, 1.0)),
    ],
)
def test_what_an_accumulated_loss_is_multiplied_by(
    source: str, accepts: bool, deepspeed: bool, count: Any, counted: bool, wanted: tuple[float, float]
) -> None:
    file = patch_file("accumulated-loss-undivided")
    trainer = SimpleNamespace(
        args=SimpleNamespace(gradient_accumulation_steps=4),
        accelerator=SimpleNamespace(gradient_accumulation_steps=1),
        model_accepts_loss_kwargs=accepts,
        compute_loss_func=None,
        is_deepspeed_enabled=deepspeed,
    )
    assert file.factors(file.read(source), trainer, count, counted) == wanted


class Mixin:
    def prepare_inputs_for_generation(self) -> None: ...


class Pretrained: ...


class OfTransformers(Pretrained):
    __module__ = "transformers.models.bert.modeling_bert"


class OwnCode(Pretrained): ...


class OwnInputs(OwnCode):
    def prepare_inputs_for_generation(self) -> None: ...


@pytest.mark.parametrize(
    ("model", "lent"), [(OwnCode, True), (OwnInputs, False), (OfTransformers, False), (Mixin, False)]
)
def test_which_models_peft_is_lent_a_method_for(
    model: type, lent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = SimpleNamespace(GenerationMixin=Mixin, PreTrainedModel=Pretrained)
    monkeypatch.setitem(sys.modules, "transformers", upstream)
    assert bool(patch_file("peft-generation-inputs").missing(model())) is lent


def test_nothing_lent_stays_on_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = SimpleNamespace(GenerationMixin=Mixin, PreTrainedModel=Pretrained)
    monkeypatch.setitem(sys.modules, "transformers", upstream)
    module: Any = ModuleType("peft.peft_model")

    class Tuned:
        def __init__(self, model: Any) -> None:
            self.kept = model.prepare_inputs_for_generation

    module.PeftModelForCausalLM = module.PeftModelForSeq2SeqLM = Tuned
    patch_file("peft-generation-inputs").apply(Patch("p", Journal()), module)
    assert Tuned(OwnCode()).kept.__func__ is Mixin.prepare_inputs_for_generation
    assert not hasattr(OwnCode, "prepare_inputs_for_generation")


def renaming(old: str) -> Callable[..., Any]:
    """A decorator in the manner of transformers' ``deprecate_kwarg``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def renamed(*args: Any, **kwargs: Any) -> Any:
            if old in kwargs:
                kwargs["processing_class"] = kwargs.pop(old)
            return function(*args, **kwargs)

        return renamed

    return decorate


def takes_the_new_name(self: Any, args: Any = None, processing_class: Any = None) -> None: ...


def takes_both(self: Any, processing_class: Any = None, tokenizer: Any = None) -> None: ...


def takes_the_old_name(self: Any, tokenizer: Any = None) -> None: ...


def hands_on(self: Any, processing_class: Any = None, **kwargs: Any) -> None: ...


@pytest.mark.parametrize(
    ("constructor", "refused"),
    [
        (takes_the_new_name, True),
        (takes_both, False),
        (takes_the_old_name, False),
        (hands_on, False),
        (renaming("tokenizer")(takes_the_new_name), False),
        (renaming("model_max")(takes_the_new_name), True),
        (object.__init__, False),
        (None, False),
    ],
)
def test_which_constructors_are_taught_the_old_name(constructor: Any, refused: bool) -> None:
    assert patch_file("trainer-tokenizer-argument").refuses(constructor) is refused


def taught() -> Any:
    """A Trainer of transformers 5's form, patched."""

    class Trainer:
        def __init__(self, model: Any = None, processing_class: Any = None) -> None:
            self.processing_class = processing_class

    module: Any = ModuleType("transformers.trainer")
    module.Trainer = Trainer
    patch_file("trainer-tokenizer-argument").apply(Patch("p", Journal()), module)
    return Trainer


def test_a_trainer_built_with_the_old_name_has_both() -> None:
    base: Any = taught()

    class Later(base):  # type: ignore[misc]
        def __init__(self, model: Any = None, processing_class: Any = None) -> None:
            super().__init__(model, processing_class=processing_class)

    class HandsOn(base):  # type: ignore[misc]
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(processing_class=None, **kwargs)

    classes: tuple[Any, ...] = (base, Later, HandsOn)
    for cls in classes:
        trainer = cls(tokenizer="t")
        assert (trainer.processing_class, trainer.tokenizer) == ("t", "t")
    assert not hasattr(base(processing_class="t"), "tokenizer")
    with pytest.raises(TypeError, match="tokenizer"):
        base(tokenizer="t", processing_class="p")


def test_a_tokenizer_of_the_scripts_own_stays() -> None:
    class Own(taught()):  # type: ignore[misc]
        def __init__(self, tokenizer: Any) -> None:
            self.tokenizer = tokenizer
            super().__init__(processing_class="p")

    own: Any = Own(tokenizer="t")
    assert (own.processing_class, own.tokenizer) == ("p", "t")


class Tree:
    """A model as far as names go: what it holds, and how it renames its own checkpoint."""

    _checkpoint_conversion_mapping = {  # noqa: RUF012
        "^visual": "model.visual",
        r"^model(?!\.(language_model|visual))": "model.language_model",
    }

    def named_modules(self) -> list[tuple[str, None]]:
        paths = ("model.language_model.layers.0.q_proj", "model.visual.blocks.0.qkv")
        parents = [".".join(path.split(".")[:end]) for path in paths for end in range(1, 7)]
        return [(f"base_model.model.{path}", None) for path in parents]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("model.layers.0.q_proj.lora_A.weight", "model.language_model.layers.0.q_proj.lora_A.weight"),
        ("visual.blocks.0.qkv.lora_A.weight", "model.visual.blocks.0.qkv.lora_A.weight"),
        ("model.visual.blocks.0.qkv.lora_A.weight", "model.visual.blocks.0.qkv.lora_A.weight"),
        ("model.language_model.layers.0.q_proj.lora_B.weight",) * 2,
        ("other.layers.0.q_proj.lora_A.weight",) * 2,
    ],
)
def test_which_adapter_keys_are_renamed(old: str, new: str) -> None:
    found = patch_file("adapter-renamed-keys").renamed(Tree(), {f"base_model.model.{old}": 1})
    assert found == {f"base_model.model.{new}": 1}


def test_an_adapter_for_no_module_is_named(caplog: pytest.LogCaptureFixture) -> None:
    file, patch = patch_file("adapter-renamed-keys"), Patch("p", Journal())
    state = {"a.lora_A.weight": 1, "b.lora_A.weight": 1}
    file.check(patch, state, [])
    assert caplog.messages == []
    file.check(patch, state, ["a.lora_A.weight"])
    file.check(patch, state, list(state))
    some, all_of_it = caplog.messages
    assert "1 adapter weights were not loaded" in some
    assert "nothing of this adapter was loaded" in all_of_it
    assert "b.lora_A" in all_of_it


# --- stale-rope-deltas --------------------------------------------------------------------------------


class _Cache:
    def __init__(self, held: int) -> None:
        self.held = held

    def get_seq_length(self) -> int:
        return self.held


def _computes(
    self: Any,
    input_ids: Any = None,
    attention_mask: Any = None,
    position_ids: Any = None,
    past_key_values: Any = None,
    inputs_embeds: Any = None,
) -> Any:
    """As Qwen2-VL's: what was kept is used unless a prompt says that it begins."""
    return self.rope_deltas


FORWARDS = [
    ((), {"input_ids": "ids"}, False),
    (("ids", "mask"), {}, False),
    ((), {"input_ids": "ids", "past_key_values": _Cache(0)}, False),
    (("ids", None, None, _Cache(0)), {}, False),
    ((), {"input_ids": "ids", "past_key_values": _Cache(7)}, True),
    (("ids", None, None, _Cache(7)), {}, True),
    ((), {"input_ids": "ids", "position_ids": "given"}, True),
    ((), {"inputs_embeds": "embedded"}, True),
]


@pytest.mark.parametrize(
    ("owner", "name"),
    [("Qwen2VLForConditionalGeneration", "forward"), ("Qwen2VLModel", "compute_3d_position_ids")],
)
@pytest.mark.parametrize(("args", "kwargs", "kept"), FORWARDS)
def test_which_forwards_forget_what_an_earlier_one_left(
    args: Any, kwargs: Any, kept: bool, owner: str, name: str
) -> None:
    entry = ENTRIES["stale-rope-deltas"]
    module: Any = ModuleType(entry.targets[0])
    setattr(module, owner, type(owner, (), {"rope_deltas": "left", name: _computes}))
    patch_file(entry.id).apply(Patch(entry.id, Journal()), module)
    found = getattr(getattr(module, owner)(), name)(*args, **kwargs)
    assert (found is not None) == kept


# --- accumulation-divided-twice -----------------------------------------------------------------------


class _Accelerator:
    gradient_accumulation_steps = 0

    def backward(self, loss: Any) -> None: ...


class _Trainer:
    """As transformers 5.3's: accelerate is told the number of steps."""

    def __init__(self, **said: int) -> None:
        self.args = SimpleNamespace(
            gradient_accumulation_steps=4,
            accelerator_config=SimpleNamespace(gradient_accumulation_kwargs=said or None),
        )
        self.accelerator = _Accelerator()
        self.create_accelerator_and_postprocess()

    def create_accelerator_and_postprocess(self) -> None:
        self.accelerator.gradient_accumulation_steps = self.args.gradient_accumulation_steps

    def training_step(self, model: Any, inputs: Any) -> None: ...


class _Around(_Trainer):
    """As TRL's: something around transformers' own."""

    def training_step(self, *args: Any, **kwargs: Any) -> None:
        with contextlib.nullcontext():
            super().training_step(*args, **kwargs)


class _OwnBackward(_Trainer):
    """As a script of 2024: it leaves the division to accelerate."""

    def training_step(self, model: Any, inputs: Any) -> None:
        self.accelerator.backward(model(**inputs).loss)


class _OnTopOfOwn(_OwnBackward):
    def training_step(self, model: Any, inputs: Any) -> None:
        super().training_step(model, inputs)


@pytest.mark.parametrize(
    ("trainer", "said", "told"),
    [
        (_Trainer, {}, 1),
        (_Around, {}, 1),
        (_OwnBackward, {}, 4),
        (_OnTopOfOwn, {}, 4),
        (_Trainer, {"num_steps": 4}, 4),
        (_Trainer, {"adjust_scheduler": 1}, 1),
    ],
)
def test_which_trainers_divide_without_accelerate(trainer: type, said: dict[str, int], told: int) -> None:
    module: Any = ModuleType("transformers.trainer")
    module.Trainer = _Trainer
    journal = Journal()
    patch_file("accumulation-divided-twice").apply(Patch("accumulation-divided-twice", journal), module)
    try:
        assert trainer(**said).accelerator.gradient_accumulation_steps == told
    finally:
        journal.rollback(["accumulation-divided-twice"])
    assert _Trainer().accelerator.gradient_accumulation_steps == 4


class Loaded:
    """A model with a frozen weight, a trained one and a buffer, which is loaded strictly."""

    def __init__(self) -> None:
        self.held = {"frozen": 1.0, "lora": 2.0, "buffer": 3.0}

    def named_parameters(self) -> list[tuple[str, Any]]:
        return [(name, SimpleNamespace(requires_grad=name == "lora")) for name in ("frozen", "lora")]

    def state_dict(self) -> dict[str, float]:
        return self.held

    def load_state_dict(self, found: dict[str, float]) -> None:
        if found.keys() != self.held.keys():
            raise RuntimeError("Missing key(s) in state_dict")
        self.held = found


class Resumed:
    """An engine of DeepSpeed: what it is asked to load, and how."""

    def __init__(self, saved: dict[str, float]) -> None:
        self.module, self.saved = Loaded(), saved

    def load_checkpoint(self, path: str, custom_load_fn: Any = None) -> None:
        if custom_load_fn:
            custom_load_fn(src=self.saved, dst=self.module)
        else:
            self.module.load_state_dict(self.saved)


@pytest.mark.parametrize(
    ("saved", "adapter", "ends"),
    [
        ({"lora": 5.0, "buffer": 6.0}, True, False),
        ({"lora": 5.0, "buffer": 6.0}, False, True),  # no PeftModel: all was saved
        ({"frozen": 7.0, "buffer": 6.0}, True, True),
        ({"frozen": 7.0, "lora": 5.0}, True, True),
        ({"lora": 5.0, "buffer": 6.0, "other": 8.0}, True, True),
    ],
)
def test_what_may_be_absent_from_an_adapters_checkpoint(
    saved: dict[str, float], adapter: bool, ends: bool
) -> None:
    trainer: Any = ModuleType("trainer")

    def deepspeed_load_checkpoint(deepspeed_engine: Any, checkpoint_path: str) -> None:
        deepspeed_engine.load_checkpoint(checkpoint_path)

    trainer.deepspeed_load_checkpoint = deepspeed_load_checkpoint
    trainer._is_peft_model = lambda model: adapter
    patch_file("zero-resumed-adapter").apply(Patch("zero-resumed-adapter", Journal()), trainer)
    engine = Resumed(saved)
    with pytest.raises(RuntimeError, match="Missing key") if ends else contextlib.nullcontext():
        trainer.deepspeed_load_checkpoint(engine, "checkpoint-2")
    assert engine.module.held == ({"frozen": 1.0, "lora": 2.0, "buffer": 3.0} | ({} if ends else saved))
    assert "load_checkpoint" not in vars(engine)


class Head:
    """Of a transformers model, as far as this goes."""

    __module__ = "transformers.models.llama.modeling_llama"

    def __init__(self, kind: str | None = "single_label_classification", labels: int = 3) -> None:
        self.config = SimpleNamespace(problem_type=kind, num_labels=labels)

    def loss_function(self, *args: Any, **kwargs: Any) -> Any: ...

    def model(self, *args: Any, **kwargs: Any) -> Any: ...


class Dropping(Head):
    """Its text has a string that stands further left."""

    __module__ = Head.__module__

    def forward(self, x: Any, labels: Any = None, **kwargs: Any) -> Any:
        """
        Of shape [1].
        """
        self.model(x, **kwargs)
        return self.loss_function(x, labels)


class Handing(Head):
    __module__ = Head.__module__

    def forward(self, x: Any, labels: Any = None, **kwargs: Any) -> Any:
        self.model(x, **kwargs)
        return self.loss_function(x, labels, **kwargs)


class Inner(Head):
    __module__ = Head.__module__

    def forward(self, x: Any, labels: Any = None, **kwargs: Any) -> Any:
        loss = self.model(x, labels=labels, **kwargs)
        return loss


class Scripts(Dropping):
    """A script's own, which hands the number to what may use it."""

    __module__ = "finetune"

    def forward(self, x: Any, labels: Any = None, **kwargs: Any) -> Any:
        print(x, kwargs)
        return self.loss_function(x, labels)


class Said(Dropping):
    __module__ = Head.__module__
    accepts_loss_kwargs = True


@pytest.mark.parametrize(
    ("model", "ignored"),
    [(Dropping, True), (Handing, False), (Inner, False), (Scripts, False), (Said, False)],
)
def test_a_head_that_drops_the_number_of_tokens(model: type[Head], ignored: bool) -> None:
    assert patch_file("loss-kwargs-ignored").ignores_count(model()) is ignored


def test_what_is_said_of_one_model_or_given_to_it_stands() -> None:
    patch = patch_file("loss-kwargs-ignored")
    said, given, replaced = Dropping(), Dropping(), Dropping()
    vars(said)["accepts_loss_kwargs"] = True
    vars(given)["_loss_function"] = print
    vars(replaced)["forward"] = Handing().forward  # as Liger gives it another
    assert not any(map(patch.ignores_count, (said, given, replaced)))


class Dividing(SimpleNamespace):
    """A Trainer of a script that knows that nobody divides."""

    def compute_loss(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        return model(**inputs).loss / self.args.gradient_accumulation_steps


@pytest.mark.parametrize(
    ("trainer", "left"),
    [
        (SimpleNamespace(label_smoother=None, loss_is_scaled_for_ga=None), True),
        (SimpleNamespace(label_smoother=print), False),
        (SimpleNamespace(label_smoother=None, compute_loss_func=print), False),
        (SimpleNamespace(loss_is_scaled_for_ga=False), False),
        (Dividing(), False),
    ],
)
def test_a_trainer_whose_loss_is_not_left_to_the_model(trainer: Any, left: bool) -> None:
    assert patch_file("loss-kwargs-ignored").is_left_to_it(trainer, SimpleNamespace) is left


@pytest.mark.parametrize(
    ("kind", "labels", "ignored"),
    [
        ("regression", 3, True),
        ("multi_label_classification", 3, True),
        ("single_label_classification", 3, False),
        (None, 1, True),
        (None, 3, False),
    ],
)
def test_a_loss_that_ignores_the_number_of_tokens(kind: str | None, labels: int, ignored: bool) -> None:
    patch, model = patch_file("loss-kwargs-ignored"), Handing(kind, labels)
    assert patch.ignores_count(model) is False
    vars(model)["loss_function"] = type("Loss", (), {"__name__": patch.CLASSIFIES})()
    assert patch.ignores_count(model) is ignored


class LanguageModel:
    """What a forward may call: a model."""

    def get_input_embeddings(self) -> None: ...


@pytest.mark.parametrize(
    ("body", "hands_on"),
    [
        ("self.language_model(inputs_embeds=x, **kwargs)", False),  # LLaVA's: it gets no labels
        ("kwargs.pop('use_cache', None)", False),
        ("super().forward(x, **kwargs)", False),
        ("super().forward(x, labels=labels, **kwargs)", True),
        ("self.language_model(x, labels, **kwargs)", True),
        ("self.number(x, **kwargs)", True),
        ("number(x, kwargs)", True),
        ("self.absent.number(x, **kwargs)", True),
    ],
)
def test_a_forward_that_hands_the_number_of_tokens_on(body: str, hands_on: bool) -> None:
    patch = patch_file("loss-kwargs-ignored")
    model = SimpleNamespace(language_model=LanguageModel(), number=print)
    assert (
        patch.hands_on(f"    def forward(self, x, labels=None, **kwargs):\n        {body}\n", model)
        is hands_on
    )
    assert not patch.hands_on("def forward(self, x, labels=None):\n    number(x)\n", model)
    inside = f"def forward(self, x, **kwargs):\n    {body}\n"  # the labels are among them
    assert patch.hands_on(inside, model) is not body.startswith("kwargs.")
