"""MiniCPM-V is recognised by what its files do; nobody else's files are."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import gc
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import vlmpatch  # noqa: F401  (makes vlmpatch.patches importable in a checkout)
from vlmpatch.api import Patch
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read
from vlmpatch.engine.apply import load
from vlmpatch.gate.source import Code, Unrecognised, of_file
from vlmpatch.journal.journal import Journal

PATCHES = Path(__file__).resolve().parents[2] / "patches"
SCRIPT_TRAINER = """
from transformers import Trainer
from transformers.trainer import *

class CPMTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        return self.model(data=inputs).loss

    def training_step(self, model, inputs):
        loss = self.compute_loss(model, inputs)
        if self.use_apex:
            pass
        self.accelerator.backward(loss)
        return loss.detach() / self.args.gradient_accumulation_steps

    def _save(self, output_dir):
        self.model.save_pretrained(output_dir, safe_serialization=self.args.save_safetensors)
"""
FIRST_TRAINER = """
from transformers import Trainer

class CPMTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        embedding, _ = self.model.get_vllm_embedding(inputs)
        return self.model.llm(inputs_embeds=embedding).loss
"""
OTHER_TRAINER = """
class OtherTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        self.model.eval()
        return model(**inputs).loss

    def training_step(self, model, inputs):
        self.accelerator.backward(self.compute_loss(model, inputs))
"""
MODEL_26 = """
from .resampler import Resampler

class MiniCPMV(MiniCPMVPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)

    def get_vllm_embedding(self, data):
        embedding.scatter_(0, places, features)
"""
# MiniCPM-V-2 has a timm tower, MiniCPM-Llama3-V-2.5 a Llama; both name their class alike.
MODEL_2 = """
from timm.models import create_model
from .resampler import Resampler

class MiniCPMV(MiniCPMVPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.llm = MiniCPMForCausalLM(config)
        self.vpm = create_model(config.vision_encoder)

    def get_vllm_embedding(self, data):
        embedding.scatter_(0, places, features)
"""
MODEL_OMNI = """
class MiniCPMO(MiniCPMOPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
"""
DATASET = """
class SupervisedDataset(Dataset): ...

def conversation_to_ids(conversation, tokenizer, llm_type=None): ...

def conversation_to_ids_qwen2(conversation, tokenizer):
    return np.array(tokenizer.apply_chat_template(conversation, tokenize=True))
"""
OF_TRAINERS = (
    "trainer_self_model_under_ddp",
    "trainer_accumulated_gradients",
    "trainer_training_step_signature",
    "trainer_use_apex",
    "trainer_save_safetensors",
    "trainer_zero3_last_save",
)
OF_MODELS = (
    "minicpmv_init_arguments",
    "minicpmv_missing_post_init",
    "minicpmv_position_table",
)


def patch_file(name: str) -> Any:
    found = next(path for path in PATCHES.glob(f"*/{name}.py"))
    return importlib.import_module(f"vlmpatch.patches.{found.parent.name}.{name}")


def look(name: str, source: str) -> str | None:
    found: str | None = patch_file(name).look(Code("m", "m.py", source))
    return found


def handle() -> Patch:
    return Patch("test", Journal())


@pytest.mark.parametrize("name", OF_TRAINERS)
def test_the_script_is_recognised(name: str) -> None:
    assert look(name, SCRIPT_TRAINER) is None


@pytest.mark.parametrize("name", OF_TRAINERS)
def test_another_trainer_is_left_alone(name: str) -> None:
    assert look(name, OTHER_TRAINER) == "this module is not the trainer of MiniCPM-V's fine-tune script"


def test_the_first_generation_of_the_script_is_recognised() -> None:
    assert look("trainer_self_model_under_ddp", FIRST_TRAINER) is None
    assert look("trainer_accumulated_gradients", FIRST_TRAINER) == "training_step is not overridden"


def test_a_mended_script_needs_nothing() -> None:
    divided = SCRIPT_TRAINER.replace(
        "        self.accelerator.backward",
        "        loss = loss / self.args.gradient_accumulation_steps\n        self.accelerator.backward",
    )
    assert look("trainer_accumulated_gradients", divided) == "training_step divides the loss itself"
    counted = SCRIPT_TRAINER.replace(
        "training_step(self, model, inputs)", "training_step(self, model, inputs, num_items_in_batch=None)"
    )
    assert look("trainer_training_step_signature", counted) is not None
    assert look("chat_template_dict", DATASET.replace("tokenize=True", "return_dict=False")) is not None


@pytest.mark.parametrize("name", OF_MODELS)
@pytest.mark.parametrize("source", [MODEL_26, MODEL_2])
def test_the_generations_of_the_model_are_recognised(name: str, source: str) -> None:
    assert look(name, source) is None


@pytest.mark.parametrize("name", OF_MODELS)
def test_another_model_is_left_alone(name: str) -> None:
    other = MODEL_OMNI.replace("MiniCPMO", "Mini")
    assert look(name, other) == "this module has no MiniCPMV class"


def test_minicpm_o_lacks_what_minicpm_v_lacks() -> None:
    with_resampler = f"from .resampler import Resampler\n{MODEL_OMNI}"
    assert look("minicpmv_missing_post_init", MODEL_OMNI) is None
    assert look("minicpmv_position_table", with_resampler) is None
    assert look("minicpmv_init_arguments", MODEL_OMNI) == "this module has no MiniCPMV class"


def test_a_mended_model_needs_nothing() -> None:
    assert look(
        "minicpmv_missing_post_init", MODEL_26.replace("(config)\n", "(config)\n        self.post_init()\n")
    )
    assert look("minicpmv_init_arguments", MODEL_26.replace("self, config", "self, config, **kwargs"))


def test_the_dataset_gets_ids_and_nobody_else() -> None:
    assert look("chat_template_dict", DATASET) is None
    assert look("chat_template_dict", "def other(): ...") is not None

    class Tokenizer:
        def apply_chat_template(self, chat: Any, return_dict: bool = True) -> Any:
            return {"input_ids": [1]} if return_dict else [1]

    module = ModuleType("dataset")

    def conversation_to_ids_qwen2(conversation: Any, tokenizer: Any) -> Any:
        return tokenizer.apply_chat_template(conversation)

    module.conversation_to_ids_qwen2 = conversation_to_ids_qwen2  # type: ignore[attr-defined]
    tokenizer = Tokenizer()
    patch_file("chat_template_dict").apply(handle(), module)
    assert module.conversation_to_ids_qwen2([], tokenizer) == [1]
    assert tokenizer.apply_chat_template([]) == {"input_ids": [1]}


def test_lost_names_are_those_used_and_nowhere_bound() -> None:
    lost = patch_file("star_imports").lost_typing_names
    source = (
        "from m import *\nfrom typing import Any\ndef f(a: Dict, b: Any, c: list, d: Tuple) -> Unknown: ..."
    )
    tree = ast.parse(source)
    assert set(lost(tree, "m", {"Tuple"})) == {"Dict"}
    assert lost(tree, "another", set()) == {}
    assert lost(ast.parse("def f(a: Dict): ..."), "m", set()) == {}


@dataclasses.dataclass
class Arguments:
    eval_strategy: str = "no"
    warmup_steps: float = 0
    tune_vision: bool = True
    tune_llm: bool = True


@dataclasses.dataclass
class OtherArguments:
    eval_strategy: str = "no"


def parsed(part: type, words: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    class HfArgumentParser:
        dataclass_types = (part,)

        def parse_args_into_dataclasses(self, args: Any = None) -> Any:
            return sys.argv[1:] if args is None else args

    monkeypatch.setattr(sys, "argv", ["finetune.py", *words])
    patch_file("renamed_training_flags").apply(handle(), SimpleNamespace(HfArgumentParser=HfArgumentParser))
    found: list[str] = HfArgumentParser().parse_args_into_dataclasses()
    return found


def test_old_flags_become_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    words = [
        "--evaluation_strategy",
        "steps",
        "--warmup_ratio=0.01",
        "--logging_dir",
        "logs",
        "--tune_llm",
        "no",
    ]
    assert parsed(Arguments, words, monkeypatch) == [
        *("--eval_strategy", "steps", "--warmup_steps=0.01", "--tune_llm", "no"),
    ]
    assert os.environ["TENSORBOARD_LOGGING_DIR"] == "logs"
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR")


def test_flags_of_other_scripts_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--evaluation_strategy", "steps"]
    assert parsed(OtherArguments, words, monkeypatch) == words


def test_a_dropped_group_is_forgotten_by_its_scheduler_only() -> None:
    class LRScheduler:
        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer
            self.base_lrs = [1.0, 2.0]

    class DeepSpeedEngine:
        def _configure_optimizer(self, client_optimizer: Any, model_parameters: Any) -> None:
            groups = client_optimizer.param_groups
            groups[:] = [group for group in groups if group["params"]]

    class Optimizer:
        def __init__(self) -> None:
            self.param_groups = [{"params": []}, {"params": [1]}]

    patches = patch_file("deepspeed_dropped_group")
    patches.apply(handle(), SimpleNamespace(LRScheduler=LRScheduler))
    patches.apply(handle(), SimpleNamespace(DeepSpeedEngine=DeepSpeedEngine))
    optimizer, bystander = Optimizer(), LRScheduler(Optimizer())
    scheduler = LRScheduler(optimizer)
    DeepSpeedEngine()._configure_optimizer(optimizer, None)
    assert scheduler.base_lrs == [2.0]
    assert bystander.base_lrs == [1.0, 2.0]


class Unhashable:
    """Equal to everything, as numpy-like classes are, and therefore without a hash."""

    def __eq__(self, other: object) -> bool:
        raise TypeError("not comparable")

    __hash__ = None  # type: ignore[assignment]


def test_schedulers_and_optimizers_need_no_hash() -> None:
    class LRScheduler(Unhashable):
        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer
            self.base_lrs = [1.0, 2.0]

    class DeepSpeedEngine:
        def _configure_optimizer(self, client_optimizer: Any, model_parameters: Any) -> None:
            groups = client_optimizer.param_groups
            groups[:] = [group for group in groups if group["params"]]

    class Optimizer(Unhashable):
        def __init__(self) -> None:
            self.param_groups = [{"params": []}, {"params": [1]}]

    patches = patch_file("deepspeed_dropped_group")
    patches.apply(handle(), SimpleNamespace(LRScheduler=LRScheduler))
    patches.apply(handle(), SimpleNamespace(DeepSpeedEngine=DeepSpeedEngine))
    optimizer, bystander = Optimizer(), LRScheduler(Optimizer())
    scheduler = LRScheduler(optimizer=optimizer)
    noted = len(patches._schedulers)
    DeepSpeedEngine()._configure_optimizer(client_optimizer=optimizer, model_parameters=None)
    assert scheduler.base_lrs == [2.0]
    assert bystander.base_lrs == [1.0, 2.0]
    del scheduler, bystander
    gc.collect()
    assert len(patches._schedulers) == noted - 2


def test_an_automatic_warmup_of_zero_becomes_one() -> None:
    class HfTrainerDeepSpeedConfig:
        def __init__(self, value: Any) -> None:
            self.value = value

        def get_value(self, key: str) -> Any:
            return self.value

        def fill_match(self, ds_key_long: str, hf_val: Any, hf_key: Any = None) -> Any:
            return hf_val

    patch_file("deepspeed_no_warmup").apply(
        handle(), SimpleNamespace(HfTrainerDeepSpeedConfig=HfTrainerDeepSpeedConfig)
    )
    key = "scheduler.params.warmup_num_steps"
    assert HfTrainerDeepSpeedConfig("auto").fill_match(key, 0) == 1
    assert HfTrainerDeepSpeedConfig(0).fill_match(key, 0) == 0
    assert HfTrainerDeepSpeedConfig("auto").fill_match("scheduler.params.total_num_steps", 0) == 0


@pytest.mark.parametrize("others", ["", "class CPMTrainer:\n    pass\n", f'X = """{SCRIPT_TRAINER}"""\n'])
def test_a_long_trainer_is_parsed_once_whichever_patch_looks(
    others: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(f"    {n}: ({n}, 'row'),\n" for n in range(2000))
    path = tmp_path / "trainer.py"
    path.write_text(f"{SCRIPT_TRAINER}{others}TABLE = {{\n{rows}}}\n")
    whole: list[str] = []
    parse = ast.parse

    def parsing(text: str, *rest: Any, **more: Any) -> Any:
        whole.extend([text] if "TABLE" in text else [])
        return parse(text, *rest, **more)

    monkeypatch.setattr(ast, "parse", parsing)
    for entry in read(default_path()).entries.values():
        if "trainer" in entry.targets:
            with contextlib.suppress(Unrecognised):
                load(entry).look(of_file("trainer", str(path)))
    assert len(whole) == 1
