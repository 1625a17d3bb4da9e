"""The parts of the ZeRO-3 patches that need no ranks."""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import vlmpatch
from vlmpatch import api
from vlmpatch.journal.journal import Journal

trl_forced_reentrant: Any = importlib.import_module("vlmpatch.patches.trl.trl_forced_reentrant")
zero3_adapter: Any = importlib.import_module("vlmpatch.patches.peft.zero3_adapter_of_weights")
zero3_copied_whole: Any = importlib.import_module("vlmpatch.patches.peft.zero3_copied_whole")
zero3_parameters: Any = importlib.import_module("vlmpatch.patches._shared.zero3_parameters")
zero3_unknown_type_warning: Any = importlib.import_module(
    "vlmpatch.patches.deepspeed.zero3_unknown_type_warning"
)
zero3_bias: Any = importlib.import_module("vlmpatch.patches.deepspeed.zero3_bias_of_frozen_weight")
zero3_renumbered: Any = importlib.import_module("vlmpatch.patches.deepspeed.zero3_renumbered_modules")
zero3_resized: Any = importlib.import_module("vlmpatch.patches.transformers.zero3_resized_embeddings")
zero3_converted: Any = importlib.import_module("vlmpatch.patches.transformers.zero3_converted_shapes")
zero3_uneven_calls: Any = importlib.import_module("vlmpatch.patches.deepspeed.zero3_uneven_calls")


def test_the_error_advises_nothing_that_leads_astray() -> None:
    assert "ZeRO-2" not in zero3_uneven_calls.PARTED
    assert "sort" not in zero3_uneven_calls.PARTED
    assert "minicpmv-slice-groups" in zero3_uneven_calls.PARTED


def test_uneven_calls_declines_another_coordinator() -> None:
    code = api.Code("m", "m.py", "class PartitionedParameterCoordinator:\n    pass\n")
    with pytest.raises(api.Unrecognised):
        zero3_uneven_calls.look(code)


WARNING = """
{}
def apply_to_tensors_only(function, value, warning_msg_fn=None):
    global warned
    if warning_msg_fn and not warned:
        warned = True
    return value
"""


def test_a_deepspeed_that_has_its_variable_is_left_alone() -> None:
    def look(head: str) -> str | None:
        code = api.Code("deepspeed.runtime.zero.utils", "utils.py", WARNING.format(head))
        said: str | None = zero3_unknown_type_warning.look(code)
        return said

    assert look("") is None
    assert look("warned = False") == "the variable is there"
    with pytest.raises(api.Unrecognised):
        zero3_unknown_type_warning.look(api.Code("m", "utils.py", "warned = 1\n"))


COPYING = """
class ModulesToSaveWrapper:
    def update(self, adapter_name):
        with {}:
            self.modules_to_save[adapter_name] = copy.deepcopy(self.original_module)
"""


def test_a_peft_that_gathers_before_it_copies_is_left_alone() -> None:
    def look(text: str) -> str | None:
        found: str | None = zero3_copied_whole.look(api.Code("peft.utils.other", "other.py", text))
        return found

    assert look(COPYING.format("nullcontext()")) is None
    assert look(COPYING.format("deepspeed.zero.GatheredParameters(parameters)")) is not None
    with pytest.raises(api.Unrecognised):
        look("class ModulesToSaveWrapper:\n    pass\n")


MEASURING = """
class DeloraLayer:
    def reset_delora_parameters(self, adapter_name):
        {}
        self.delora_w_norm = sum(weight.values for weight in self.layer.parameters())

    def get_base_layer(self):
        return self.layer
"""


def test_a_peft_that_gathers_before_it_makes_an_adapter_is_left_alone() -> None:
    def look(text: str) -> str | None:
        found: str | None = zero3_adapter.look(api.Code("peft.tuners.delora.layer", "layer.py", text))
        return found

    assert look(MEASURING.format("pass")) is None
    assert look(MEASURING.format("gather_params_ctx(weight)")) is not None
    with pytest.raises(api.Unrecognised):
        look("class DeloraLayer:\n    pass\n")


@pytest.mark.parametrize("status", ["NOT_AVAILABLE", "AVAILABLE"])
def test_an_adapter_is_made_of_weights_that_are_there(monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    weight = SimpleNamespace(ds_status=SimpleNamespace(name=status), values=0 if status[0] == "N" else 5)
    gathered: list[Any] = []

    @contextlib.contextmanager
    def gather(parameters: list[Any], modifier_rank: int | None) -> Any:
        assert modifier_rank is None
        gathered.append(parameters)
        weight.values = 5
        yield
        weight.values = 0

    deepspeed = ModuleType(zero3_parameters.MODULE)
    vars(deepspeed)["GatheredParameters"] = gather
    monkeypatch.setitem(sys.modules, deepspeed.__name__, deepspeed)
    peft = ModuleType("peft.tuners.delora.layer")
    exec(MEASURING.format("pass"), vars(peft))
    zero3_adapter.apply(api.Patch("zero3-adapter-of-weights", Journal()), peft)
    made = vars(peft)["DeloraLayer"]()
    made.layer = Held(weight)
    made.reset_delora_parameters("default")
    assert made.delora_w_norm == 5
    assert gathered == ([[weight]] if status == "NOT_AVAILABLE" else [])


class Held:
    """A layer with one weight."""

    def __init__(self, weight: Any) -> None:
        self._parameters = {"weight": weight}

    def parameters(self) -> list[Any]:
        return [*self._parameters.values()]


FORCING = """
class SFTTrainer:
    def __init__(self, model, args=None):
        args.gradient_checkpointing_kwargs = args.gradient_checkpointing_kwargs or {}
        self.warned = args.gradient_checkpointing_kwargs.get("use_reentrant") is False
        args.gradient_checkpointing_kwargs["use_reentrant"] = True
        self.used = dict(args.gradient_checkpointing_kwargs)
"""


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A trainer that forces reentrant checkpointing as TRL's do, patched."""
    monkeypatch.setattr(vlmpatch, "require", lambda *ids: None)
    module = ModuleType("trl.trainer.sft_trainer")
    exec(FORCING, vars(module))
    assert trl_forced_reentrant.look(api.Code(module.__name__, "sft_trainer.py", FORCING)) is None
    trl_forced_reentrant.apply(api.Patch("trl-forced-reentrant", Journal()), module)
    return vars(module)["SFTTrainer"]


@pytest.mark.parametrize("chosen", [None, {}, {"use_reentrant": False}])
def test_trl_does_not_force_reentrant(trainer: Any, chosen: dict[str, Any] | None) -> None:
    args = SimpleNamespace(gradient_checkpointing_kwargs=chosen)
    made = trainer("model", args=args)
    assert made.used == {"use_reentrant": False}
    assert not made.warned
    assert type(args.gradient_checkpointing_kwargs) is dict
    assert args.gradient_checkpointing_kwargs == {"use_reentrant": False}


def test_a_users_own_true_stands(trainer: Any) -> None:
    args = SimpleNamespace(gradient_checkpointing_kwargs={"use_reentrant": True})
    assert trainer("model", args).used == {"use_reentrant": True}


def test_trl_keeps_its_way_where_frozen_parameters_fail(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*ids: str) -> None:
        raise vlmpatch.PatchError("off")

    monkeypatch.setattr(vlmpatch, "require", refuse)
    args = SimpleNamespace(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert trainer("model", args).used == {"use_reentrant": True}


@pytest.mark.parametrize(
    ("key", "refused"),
    [
        ("model.q.lora_A.default.weight", True),
        ("model.q.lora_A.weight", True),  # as PEFT writes it
        ("module.model.q.lora_A.default.weight", True),
        ("q.lora_A.default.weight", True),
        ("model.q.lora_B.weight", False),
        ("model.q.default.weight", False),
        ("weight", False),
    ],
)
def test_under_which_names_an_empty_tensor_is_refused(torch: Any, key: str, refused: bool) -> None:
    file = importlib.import_module("vlmpatch.patches.deepspeed.zero3_empty_saves")
    names = {"model.q.lora_A.default.weight": (2, 8)}
    with pytest.raises(RuntimeError, match="written empty") if refused else contextlib.nullcontext():
        file.refuse(names, {"state": {key: tensor(0)}})
    file.refuse(names, {"state": {key: tensor(16)}})


class Tensor(SimpleNamespace):
    """As much of one as is looked at."""

    layout, is_nested, is_meta = "strided", False, False
    __torch_dispatch__ = None


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    parameter = SimpleNamespace(is_lazy=lambda value: False)
    nn = SimpleNamespace(Module=type("Module", (), {}), parameter=parameter)
    undispatched = SimpleNamespace(_disabled_torch_dispatch_impl=None)
    found = SimpleNamespace(Tensor=Tensor, nn=nn, _C=undispatched, strided="strided")
    monkeypatch.setitem(sys.modules, "torch", found)
    return found


def tensor(count: int, stored: int = 0) -> Tensor:
    storage = SimpleNamespace(nbytes=lambda: 4 * (stored or count))
    return Tensor(shape=(count,), numel=lambda: count, untyped_storage=lambda: storage)


class Remote(dict[str, Any]):
    """A dictionary that is read by attribute, and knows no default."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def test_what_is_no_tensor_is_not_asked_whether_it_is_one(torch: Any) -> None:
    file = importlib.import_module("vlmpatch.patches.deepspeed.zero3_empty_saves")
    file.refuse({"head.weight": (2, 8)}, Remote(options=Remote(rate=0.1), all=[Remote()]))


def test_a_sharded_checkpoint_of_ones_own_may_hold_an_empty_slice(torch: Any) -> None:
    file = importlib.import_module("vlmpatch.patches.deepspeed.zero3_empty_saves")
    names = {"head.weight": (2, 8), "head.bias": (2,)}
    file.refuse(names, {"head.bias": tensor(0, stored=2)})
    file.refuse(names, {"head.bias": tensor(0), "head.weight": tensor(8)})
    for whole in (tensor(0), tensor(16)):  # nothing gathered, or the weight alone
        with pytest.raises(RuntimeError, match=r"head\.bias would be written empty"):
            file.refuse(names, {"head.bias": tensor(0), "head.weight": whole})


LINEAR = """
class LinearFunctionForZeroStage3:
    @staticmethod
    def backward(ctx, grad_output):
        {}
        if ctx.needs_input_grad[1]:
            {}
"""


def test_a_linear_layer_that_counts_dimensions_first_is_left_alone() -> None:
    def look(*lines: str) -> str | None:
        code = api.Code("deepspeed.runtime.zero.linear", "linear.py", LINEAR.format(*lines))
        said: str | None = zero3_bias.look(code)
        return said

    counted = "dim = grad_output.dim()"
    assert look("pass", counted) is None
    assert look(counted, "pass") == "dimensions are counted whatever is trained"
    with pytest.raises(api.Unrecognised):
        look("pass", "pass")


@pytest.mark.parametrize("name", ["ds_id", "id"])
def test_a_recorded_step_is_known_by_the_numbers_of_its_modules(name: str) -> None:
    first, second = (SimpleNamespace(**{name: number}) for number in (1, 2))
    coordinator = SimpleNamespace(
        **{zero3_renumbered.ORDER: [first, second, first], zero3_renumbered.STEPS: {1: [0, 2], 2: [1]}}
    )
    assert not zero3_renumbered._renumbered(coordinator)
    setattr(second, name, 3)
    assert zero3_renumbered._renumbered(coordinator)
    setattr(second, name, 1)  # DeepSpeed gives the first module the last one's number
    assert zero3_renumbered._renumbered(coordinator)


RESIZING = """
class PreTrainedModel:
    def _resize_token_embeddings(self, old_embeddings):
        {}
        new_embeddings = self._get_resized_embeddings(old_embeddings)
        trained = old_embeddings.weight.requires_grad

    def _get_resized_embeddings(self, old_embeddings):
        old_embeddings.weight{} = new_embeddings.weight
        return old_embeddings
"""


def test_a_release_that_asks_what_is_trained_before_it_resizes_is_left_alone() -> None:
    def look(before: str, written: str) -> str | None:
        code = api.Code("transformers.modeling_utils", "m.py", RESIZING.format(before, written))
        said: str | None = zero3_resized.look(code)
        return said

    assert look("pass", "") is None
    assert look("trained = old_embeddings.weight.requires_grad", "") is not None
    assert look("pass", ".data") == "the old embedding keeps its parameter"
    with pytest.raises(api.Unrecognised):
        zero3_resized.look(api.Code("m", "m.py", "class PreTrainedModel:\n    pass\n"))


@pytest.mark.parametrize("trained", [True, False])
def test_a_resized_embedding_is_trained_as_it_was(trained: bool) -> None:
    class Weight(SimpleNamespace):
        def requires_grad_(self, wanted: bool) -> None:
            self.requires_grad = wanted

    class PreTrainedModel:
        def _get_resized_embeddings(self, old_embeddings: Any) -> Any:
            old_embeddings.weight = Weight(requires_grad=True)
            return old_embeddings

    module = ModuleType("transformers.modeling_utils")
    module.PreTrainedModel = PreTrainedModel  # type: ignore[attr-defined]
    zero3_resized.apply(api.Patch("zero3-resized-embeddings", Journal()), module)
    embedding = SimpleNamespace(weight=Weight(requires_grad=trained))
    assert PreTrainedModel()._get_resized_embeddings(embedding).weight.requires_grad is trained


CONVERTS = """
class Transpose:
    def convert(self, input_dict, source_patterns, target_patterns, **kwargs):
        {}
"""


def test_conversions_that_ask_for_no_shape_are_left_alone() -> None:
    def look(text: str, module: str = "transformers.core_model_loading") -> str | None:
        said: str | None = zero3_converted.look(api.Code(module, "m.py", text))
        return said

    assert look(CONVERTS.format('kwargs["model"].get_parameter(kwargs["full_layer_name"]).shape')) is None
    assert look(CONVERTS.format("return {}")) == "no operation asks for the shape of a parameter"
    with pytest.raises(api.Unrecognised):
        look("class Chunk:\n    pass\n")
    assert look("from .x import _load_state_dict_into_zero3_model\n", "transformers.modeling_utils") is None
    assert look("", "transformers.modeling_utils") is not None


HUB, OURS, SQUARE = (2, 24, 32), (2, 32, 24), (2, 32, 32)  # shapes of experts; the model has OURS or SQUARE


@pytest.mark.parametrize(
    ("shapes", "kept"),
    [
        ([OURS, OURS], [True, True]),
        ([HUB, HUB], [False, False]),
        ([OURS, SQUARE], [True, True]),  # what says nothing goes the way of the one before it
        ([HUB, SQUARE], [False, False]),
        ([SQUARE, OURS], [False, False]),  # and one that comes first is not kept: nor is what follows
    ],
)
@pytest.mark.parametrize("loading", [True, False])
def test_experts_are_kept_as_a_checkpoint_has_them(
    shapes: list[tuple[int, ...]], kept: list[bool], loading: bool
) -> None:
    class Transpose:
        dim0, dim1, check_dims = 1, 2, True

        def convert(
            self, input_dict: Any, source_patterns: Any, target_patterns: Any, **kwargs: Any
        ) -> dict[str, Any]:
            return {target_patterns[0]: "transposed"}

        def get_target_pattern(self, input_dict: Any, source_patterns: Any, target_patterns: Any) -> Any:
            return target_patterns[0]

    module = ModuleType("transformers.core_model_loading")
    module.Transpose = Transpose  # type: ignore[attr-defined]
    patch = api.Patch("zero3-converted-shapes", Journal())
    zero3_converted.apply(patch, module)
    loader = ModuleType("transformers.modeling_utils")

    def _load_state_dict_into_zero3_model(
        model_to_load: Any, state_dict: Any, load_config: Any = None
    ) -> Any:
        found = []
        for shape in state_dict:
            tensor = SimpleNamespace(shape=shape)
            whole = SQUARE if shape == SQUARE else OURS
            partitioned = SimpleNamespace(ds_status=SimpleNamespace(name="NOT_AVAILABLE"), ds_shape=whole)
            model = SimpleNamespace(get_parameter=lambda name, found=partitioned: found)
            named = {"full_layer_name": "experts", "model": model}
            made = Transpose().convert({"experts": [tensor]}, ["experts"], ["experts"], **named)
            found.append(made["experts"] is tensor)
        return found

    loader._load_state_dict_into_zero3_model = _load_state_dict_into_zero3_model  # type: ignore[attr-defined]
    load = _load_state_dict_into_zero3_model
    if loading:
        zero3_converted.apply(patch, loader)
        load = loader._load_state_dict_into_zero3_model
    assert load(None, shapes) == (kept if loading else [False, False])
