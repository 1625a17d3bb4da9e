"""What a program does with a ZeRO-3 model outside the engine's forward: make, load, call, save it.

    python -m tests.lab.outside --out DIR [--patched] [--model KIND=FOLDER ...] CASE ...

runs inside a stack's environment from the root of the clone. Each case is a function of this module's
``CASES`` and runs on two forked ranks that meet over gloo, with transformers told of ZeRO-3 as a Trainer
tells it (``HfDeepSpeedConfig``), so that ``from_pretrained`` partitions what it makes. One JSON line a
case goes to standard output. Each compares what it has with the same thing made without ZeRO-3.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import signal
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Case = Callable[["Stage"], dict[str, Any]]
CASES: dict[str, Case] = {}
ZERO3: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    # Everything is partitioned: by default tensors this small would stay whole.
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "steps_per_print": 1_000_000,
}


class Stage:
    """What a case is given: its rank, folders, and ZeRO-3 to be switched on where it wants it."""

    def __init__(self, rank: int, models: dict[str, str], folder: Path) -> None:
        self.rank = rank
        self.models = models
        self.folder = folder

    @contextmanager
    def zero3(self, **zero: Any) -> Iterator[dict[str, Any]]:
        """Inside, transformers knows of ZeRO-3; yields DeepSpeed's configuration."""
        try:
            from transformers.integrations import HfDeepSpeedConfig
        except ImportError:
            from transformers.deepspeed import HfDeepSpeedConfig
        config = {**ZERO3, "zero_optimization": {**ZERO3["zero_optimization"], **zero}}
        told = HfDeepSpeedConfig(config)
        yield config
        del told


def case(function: Case) -> Case:
    """Register a case under its name, with dashes."""
    CASES[function.__name__.replace("_", "-")] = function
    return function


def values(model: Any) -> dict[str, Any]:
    """Every parameter and persistent buffer whole, by name; takes every rank."""
    import deepspeed

    found = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
            found[name] = parameter.detach().float().clone()
    for name, buffer in model.named_buffers():
        found[name] = buffer.detach().float().clone()
    return found


def differing(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """Names that are not in both, or are not bit for bit the same."""
    both = left.keys() & right.keys()
    return sorted([*(left.keys() ^ right.keys()), *(n for n in both if not left[n].equal(right[n]))])


def partitioned(model: Any) -> bool:
    """Whether every parameter is a placeholder again."""
    return all(p.ds_status.name == "NOT_AVAILABLE" for p in model.parameters())


# --- making ---------------------------------------------------------------------------------------


def tiny_bert(**more: Any) -> Any:
    import transformers

    return transformers.BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        **more,
    )


@case
def made_from_scratch(stage: Stage) -> dict[str, Any]:
    """``from_config``: BERT's word embeddings have a ``padding_idx``."""
    import torch
    import transformers

    known = transformers.AutoModelForSequenceClassification
    torch.manual_seed(0)
    right = values(known.from_config(tiny_bert()))
    torch.manual_seed(0)
    with stage.zero3():
        model = known.from_config(tiny_bert())
    found = values(model)
    spread = {name: (found[name].std() / right[name].std()).item() for name in right if right[name].std()}
    return {
        "partitioned": partitioned(model),
        "differing": differing(found, right),
        "constant": [name for name in right if not right[name].std() and not found[name].equal(right[name])],
        "padding": found["bert.embeddings.word_embeddings.weight"][0].abs().sum().item(),
        "spread": [min(spread.values()), max(spread.values())],
    }


@case
def made_with_a_new_head(stage: Stage) -> dict[str, Any]:
    """``from_pretrained`` of a checkpoint that lacks the head."""
    import torch
    import transformers

    whole = transformers.BertModel(tiny_bert())
    torch.manual_seed(3 + stage.rank)
    folder = stage.folder / f"bert{stage.rank}"
    whole.save_pretrained(folder)
    known = transformers.BertForSequenceClassification
    torch.manual_seed(0)
    right = values(known.from_pretrained(folder))
    torch.manual_seed(0)
    with stage.zero3():
        model = known.from_pretrained(stage.folder / "bert0" if _met() else folder)
    found = values(model)
    right = {name: value for name, value in right.items() if "classifier" in name or stage.rank == 0}
    return {
        "partitioned": partitioned(model),
        "head": found["classifier.weight"].std().item() / right["classifier.weight"].std().item(),
        "bias": found["classifier.bias"].abs().sum().item(),
        "differing": [
            name for name in differing({n: found[n] for n in right}, right) if "classifier" not in name
        ],
    }


def _met() -> bool:
    import torch.distributed as dist

    dist.barrier()
    return True


def _loaded(stage: Stage, kind: str) -> dict[str, Any]:
    import torch
    import transformers

    folder = stage.models[kind]
    known = getattr(transformers, transformers.AutoConfig.from_pretrained(folder).architectures[0])
    right = values(known.from_pretrained(folder, torch_dtype=torch.float32))
    with stage.zero3():
        model = known.from_pretrained(folder, torch_dtype=torch.float32)
    return {"partitioned": partitioned(model), "differing": differing(values(model), right)}


@case
def loaded_fused_projections(stage: Stage) -> dict[str, Any]:
    """``from_pretrained`` of a Molmo2, whose file has query, key and value in one tensor."""
    import torch
    import torch.distributed as dist
    import transformers

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 1}
    sizes = {"hidden_size": 32, "intermediate_size": 64, **heads}
    config = transformers.Molmo2Config(
        text_config={**sizes, "vocab_size": 64, "additional_vocab_size": 8},
        vision_config={**sizes, "num_key_value_heads": 4, "image_size": [28, 28]},
        adapter_config={**sizes, "text_hidden_size": 32, "vision_feature_layer": [-1]},
    )
    known, folder = transformers.Molmo2ForConditionalGeneration, stage.folder / "molmo2"
    if stage.rank == 0:
        known(config).save_pretrained(folder)
    dist.barrier()
    right = values(known.from_pretrained(folder, torch_dtype=torch.float32))
    with stage.zero3():
        model = known.from_pretrained(folder, torch_dtype=torch.float32)
    return {"partitioned": partitioned(model), "differing": differing(values(model), right)}


def asked_by_one_rank(stage: Stage) -> dict[str, Any]:
    """Rank 0 alone asks a model that ZeRO-3 keeps whole for its next loss, with and without gradients."""
    import torch

    from vlmpatch_lab import engines, loading, samples
    from vlmpatch_lab.cell import Cell

    kept = {"stage3_param_persistence_threshold": 10**9}
    cell = Cell(kind="qwen2_5_vl", engine="zero3", tuning="full", checkpointing="off", compared=1, zero=kept)
    folder = Path(stage.models[cell.kind])
    engine: Any = engines.DeepSpeed(cell, loading.prepare(cell, folder))
    batch = samples.make_batches(cell, folder, stage.rank)[0]
    losses, asked = [], []
    for _ in range(3):
        loss = engine.forward(batch)
        engine.backward(loss)
        engine.engine.step()
        losses.append(loss.item())
        if stage.rank == 0:
            asked.append(engine.engine.module(**batch).loss.item())
            with torch.no_grad():
                engine.forward(batch)
    return {"differing": [n for n, loss in enumerate(asked[:-1]) if loss != losses[n + 1]]}


CASES["asked-by-one-rank-qwen2_5_vl"] = asked_by_one_rank


# --- loading --------------------------------------------------------------------------------------


def tower() -> Any:
    """A vision tower of another project."""
    import torch

    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 4, 4), torch.nn.Flatten(2), torch.nn.LayerNorm(4), torch.nn.Linear(4, 8)
    )


def model_with_own_tower(folder: Path | None) -> Any:
    """A class whose constructor builds a tower and loads it, as remote code does."""
    import torch
    import transformers

    class Model(transformers.PreTrainedModel):  # type: ignore[misc]
        config_class = transformers.PretrainedConfig
        all_tied_weights_keys: Any = {}  # noqa: RUF012

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.vision = tower()
            if folder is not None:
                self.vision.load_state_dict(torch.load(folder / "tower.pt"))
            self.head = torch.nn.Linear(8, 2)

        def _init_weights(self, module: Any) -> None:
            pass

        def forward(self, images: Any) -> Any:
            return self.head(self.vision(images)).sum()

    return Model


def saved_tower(stage: Stage) -> dict[str, Any]:
    """Writes ``tower.pt`` for each rank's own use; returns what is in it."""
    import torch

    torch.manual_seed(7)
    state: dict[str, Any] = tower().state_dict()
    if stage.rank == 0:
        torch.save(state, stage.folder / "tower.pt")
    _met()
    return state


@case
def loaded_in_a_constructor(stage: Stage) -> dict[str, Any]:
    import transformers

    right = saved_tower(stage)
    with stage.zero3():
        model = model_with_own_tower(stage.folder)._from_config(transformers.PretrainedConfig())
    return {"partitioned": partitioned(model), "differing": differing(values(model.vision), right)}


@case
def loaded_afterwards(stage: Stage) -> dict[str, Any]:
    import transformers

    right = saved_tower(stage)
    with stage.zero3():
        model = model_with_own_tower(None)._from_config(transformers.PretrainedConfig())
    model.vision.load_state_dict(right)
    return {"partitioned": partitioned(model), "differing": differing(values(model.vision), right)}


@case
def loaded_on_one_rank(stage: Stage) -> dict[str, Any]:
    import torch.distributed as dist
    import transformers

    right = saved_tower(stage)
    with stage.zero3():
        model = model_with_own_tower(None)._from_config(transformers.PretrainedConfig())
    if stage.rank == 0:
        model.vision.load_state_dict(right)
    dist.barrier()
    return {}


@case
def loaded_by_who_gathers(stage: Stage) -> dict[str, Any]:
    """As DeepSpeed's documentation has it: gathered by hand, loaded on rank 0."""
    import deepspeed
    import transformers

    right = saved_tower(stage)
    with stage.zero3():
        model = model_with_own_tower(None)._from_config(transformers.PretrainedConfig())
    with deepspeed.zero.GatheredParameters(list(model.vision.parameters()), modifier_rank=0):
        if stage.rank == 0:
            model.vision.load_state_dict(right)
    return {"partitioned": partitioned(model), "differing": differing(values(model.vision), right)}


def own_zero_init(stage: Stage, kind: str) -> dict[str, Any]:
    """``from_pretrained`` under a ``zero.Init`` of the script's own, of which transformers knows nothing."""
    import deepspeed
    import torch
    import transformers

    folder = stage.models[kind]
    known = getattr(transformers, transformers.AutoConfig.from_pretrained(folder).architectures[0])
    right = values(known.from_pretrained(folder, torch_dtype=torch.float32))
    with deepspeed.zero.Init(config_dict_or_path=ZERO3):
        model = known.from_pretrained(folder, torch_dtype=torch.float32)
    return {"partitioned": partitioned(model), "differing": differing(values(model), right)}


def engine_of(stage: Stage, **zero: Any) -> Any:
    """The model with the tower, made under ZeRO-3, in DeepSpeed's engine, trained for a step."""
    import deepspeed
    import torch
    import transformers

    saved_tower(stage)
    torch.manual_seed(5)
    with stage.zero3(**zero) as config:
        model = model_with_own_tower(None)._from_config(transformers.PretrainedConfig())
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    step(engine, stage.rank)
    return engine


def step(engine: Any, rank: int) -> None:
    import torch

    torch.manual_seed(11 + rank)
    engine.backward(engine(torch.randn(2, 3, 8, 8)))
    engine.step()


@case
def resumed(stage: Stage) -> dict[str, Any]:
    """DeepSpeed's own checkpoints hold empty tensors, and load them."""
    engine = engine_of(stage)
    engine.save_checkpoint(str(stage.folder / "resume"))
    right = values(engine.module)
    step(engine, stage.rank)
    moved = differing(values(engine.module), right)
    engine.load_checkpoint(str(stage.folder / "resume"))
    return {"differing": differing(values(engine.module), right), "moved": len(moved)}


# --- calling --------------------------------------------------------------------------------------


def called(stage: Stage, call: Callable[[Any], Any]) -> dict[str, Any]:
    """What ``call`` of the tower gives before there is an engine, against the tower without ZeRO-3."""
    import torch
    import transformers

    saved_tower(stage)
    known = model_with_own_tower(None)
    torch.manual_seed(9)
    with stage.zero3():
        model = known._from_config(transformers.PretrainedConfig()).eval()
    twin = tower().eval()
    twin.load_state_dict(values(model.vision))
    right = call(twin)
    found = call(model.vision)
    engine_hooks = sum(len(module._forward_pre_hooks) for module in model.modules())
    return {
        "partitioned": partitioned(model),
        "differing": [] if found.equal(right) else ["output"],
        "hooks": engine_hooks,
    }


def encode(vision: Any) -> Any:
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        return vision(torch.randn(2, 3, 8, 8))


@case
def called_before_the_engine(stage: Stage) -> dict[str, Any]:
    return called(stage, encode)


@case
def weights_used_before_the_engine(stage: Stage) -> dict[str, Any]:
    """A module that reads the weight of another."""
    import torch

    class Reads(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, images: Any) -> Any:
            return torch.nn.functional.linear(self.inner(images), self.inner[3].weight.t())

    readers: dict[int, Any] = {}

    def call(vision: Any) -> Any:
        if id(vision) not in readers:
            import deepspeed

            partitioned_one = hasattr(vision[0].weight, "ds_id")
            with deepspeed.zero.Init(config_dict_or_path=ZERO3, enabled=partitioned_one):
                readers[id(vision)] = Reads(vision).eval()
        return encode(readers[id(vision)])

    return called(stage, call)


@case
def called_on_one_rank(stage: Stage) -> dict[str, Any]:
    def call(vision: Any) -> Any:
        if hasattr(vision[0].weight, "ds_id") and stage.rank == 1:
            _met()
        return encode(vision)

    return called(stage, call)


@case
def trained_without_an_engine(stage: Stage) -> dict[str, Any]:
    import torch

    def call(vision: Any) -> Any:
        output = vision.train()(torch.ones(2, 3, 8, 8))
        output.sum().backward()
        return output

    return called(stage, call)


@case
def left_to_the_engine(stage: Stage) -> dict[str, Any]:
    """In an engine nothing but DeepSpeed's own hooks is left."""
    engine = engine_of(stage)
    step(engine, stage.rank)
    hooks = [h for m in engine.module.modules() for h in m._forward_pre_hooks.values()]
    ours = [h for h in hooks if "vlmpatch" in getattr(h, "__module__", "")]
    return {"partitioned": partitioned(engine.module), "differing": [str(hook) for hook in ours]}


@case
def gradients_asked_for(stage: Stage) -> dict[str, Any]:
    """Those of an input, between two steps under ZeRO-2 of which the second is to know nothing of it."""
    import deepspeed
    import torch

    found = []
    for asks in (False, True):
        torch.manual_seed(5)
        model = torch.nn.Sequential(tower(), torch.nn.Linear(8, 1), torch.nn.Flatten(0))
        config = {**ZERO3, "zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True}
        engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
        for _ in range(2):
            images = torch.ones(2, 3, 8, 8).requires_grad_()
            if asks:
                torch.autograd.grad(engine(images).sum(), images)
            engine.backward(engine(images.detach() + stage.rank).sum())
            engine.step()
        found.append(values(engine.module))
    return {"differing": differing(*found)}


# --- saving ---------------------------------------------------------------------------------------


def bert_engine(stage: Stage, adapter: bool = False, **zero: Any) -> Any:
    """A tiny BERT, with LoRA or whole, trained a step under ZeRO-3."""
    import deepspeed
    import peft
    import torch
    import transformers

    folder = stage.folder / "base"
    torch.manual_seed(4)
    if stage.rank == 0:
        transformers.BertForSequenceClassification(tiny_bert()).save_pretrained(folder)
    _met()
    with stage.zero3(**zero) as config:
        model = transformers.BertForSequenceClassification.from_pretrained(folder)
    if adapter:
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["query", "value"]))
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine = deepspeed.initialize(model=model.train(), model_parameters=trainable, config=config)[0]
    engine.backward(engine(**bert_batch(stage.rank)).loss)
    engine.step()
    return engine


@case
def modules_to_save_of_a_partitioned_model(stage: Stage) -> dict[str, Any]:
    """LoRA with ``modules_to_save`` on a model that is partitioned already; the first step's gradients."""
    import deepspeed
    import peft
    import torch
    import transformers
    from deepspeed.utils import safe_get_full_grad

    folder = stage.folder / "base"
    torch.manual_seed(4)
    if stage.rank == 0:
        config = tiny_bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        transformers.BertForSequenceClassification(config).save_pretrained(folder)
    _met()
    known = transformers.BertForSequenceClassification
    lora = peft.LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["classifier", "pooler"])
    whole = peft.get_peft_model(known.from_pretrained(folder), lora).train()
    for rank in (0, 1):
        (whole(**bert_batch(rank)).loss / 2).backward()
    trained = {name: p.grad for name, p in whole.named_parameters() if p.grad is not None}
    right = {name: gradient for name, gradient in trained.items() if "lora" not in name}  # drawn at random
    with stage.zero3() as zero:
        model = peft.get_peft_model(known.from_pretrained(folder), lora).train()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine = deepspeed.initialize(model=model, model_parameters=trainable, config=zero)[0]
    engine.backward(engine(**bert_batch(stage.rank)).loss)
    found = {n: safe_get_full_grad(p) for n, p in engine.module.named_parameters() if n in right}
    off = [name for name in right if not torch.allclose(found[name], right[name], rtol=1e-5, atol=1e-7)]
    return {"partitioned": partitioned(engine.module), "differing": off, "compared": len(right)}


def adapter_of_weights(stage: Stage, kind: str, config: Callable[[Any], Any]) -> dict[str, Any]:
    """An adapter that PEFT makes of its layer's weights; what it holds, and the first step's gradients."""
    import deepspeed
    import peft
    import torch
    from deepspeed.utils import safe_get_full_grad

    from vlmpatch_lab import loading, samples
    from vlmpatch_lab.cell import Cell

    folder = Path(stage.models[kind])

    def made() -> Any:
        model = loading.class_of(folder).from_pretrained(folder, torch_dtype=torch.float32)
        torch.manual_seed(4)
        model = peft.get_peft_model(model, config(peft)).train()
        for name, parameter in model.named_parameters():  # some are zero at first, and hide the others
            if parameter.requires_grad:
                chance = torch.Generator().manual_seed(zlib.crc32(name.encode()))
                parameter.data.add_(torch.randn(parameter.shape, generator=chance) * 0.05)
        return model

    drawn = samples.Samples(Cell(kind=kind), folder)
    rows = [drawn.image(rank) for rank in (0, 1)]
    whole = made()
    for rank in (0, 1):
        (whole(**rows[rank]).loss / 2).backward()
    right = {name: p.grad for name, p in whole.named_parameters() if p.grad is not None}
    with stage.zero3() as zero:
        model = made()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    engine = deepspeed.initialize(model=model, model_parameters=list(trained.values()), config=zero)[0]
    engine.backward(engine(**rows[stage.rank]).loss)
    found = {name: safe_get_full_grad(p) for name, p in trained.items()}
    both = right.keys() & found.keys()
    off = [name for name in both if not torch.allclose(found[name], right[name], rtol=1e-4, atol=1e-6)]
    return {
        "partitioned": partitioned(engine.module),
        "differing": sorted([*(right.keys() ^ found.keys()), *off]),
        "compared": len(right),
    }


PROJECTIONS = ["q_proj", "down_proj", "fc1", "qkv"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
OF_WEIGHTS: dict[str, Callable[[Any], Any]] = {
    "delora-qwen2_5_vl": lambda peft: peft.DeloraConfig(r=2, target_modules=PROJECTIONS),
    "experts-qwen3_vl_moe": lambda peft: peft.LoraConfig(r=2, target_modules=[], target_parameters=EXPERTS),
    "ln-qwen2_5_vl": lambda peft: peft.LNTuningConfig(target_modules=["norm1", "input_layernorm"]),
    "loha-qwen2_5_vl": lambda peft: peft.LoHaConfig(r=2, target_modules=PROJECTIONS),
    "osf-qwen2_5_vl": lambda peft: peft.OSFConfig(target_modules=PROJECTIONS),
}
for _name, _config in OF_WEIGHTS.items():
    CASES[f"adapter-of-weights-{_name}"] = functools.partial(
        adapter_of_weights, kind=_name.split("-")[-1], config=_config
    )


@case
def tokens_added_to_a_frozen_model(stage: Stage) -> dict[str, Any]:
    """What is trained afterwards, and the first step's gradients."""
    import deepspeed
    import torch
    import transformers
    from deepspeed.utils import safe_get_full_grad

    folder = stage.folder / "base"
    torch.manual_seed(4)
    if stage.rank == 0:
        config = tiny_bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        transformers.BertForSequenceClassification(config).save_pretrained(folder)
    _met()

    def made() -> Any:
        model = transformers.BertForSequenceClassification.from_pretrained(folder).train()
        model.bert.encoder.requires_grad_(False)
        model.bert.embeddings.word_embeddings.requires_grad_(False)
        model.resize_token_embeddings(72)
        return model

    whole = made()
    for rank in (0, 1):
        (whole(**bert_batch(rank)).loss / 2).backward()
    right = {name: p.grad for name, p in whole.named_parameters() if p.requires_grad}
    with stage.zero3() as zero:
        model = made()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    engine = deepspeed.initialize(model=model, model_parameters=list(trained.values()), config=zero)[0]
    engine.backward(engine(**bert_batch(stage.rank)).loss)
    found = {name: safe_get_full_grad(p) for name, p in trained.items()}
    both = right.keys() & found.keys()
    off = [name for name in both if not torch.allclose(found[name], right[name], rtol=1e-5, atol=1e-7)]
    return {
        "partitioned": partitioned(engine.module),
        "differing": sorted([*(right.keys() ^ found.keys()), *off]),
        "compared": len(right),
    }


def bert_batch(rank: int) -> dict[str, Any]:
    import torch

    return {"input_ids": torch.tensor([[3, 4, 5, rank]]), "labels": torch.tensor([rank])}


def reloaded(folder: Path, adapter: bool, base: Path) -> dict[str, Any]:
    """What a user gets who loads ``folder`` without ZeRO-3."""
    import peft
    import transformers

    known = transformers.BertForSequenceClassification
    if adapter:
        return values(peft.PeftModel.from_pretrained(known.from_pretrained(base), folder))
    return values(known.from_pretrained(folder))


def saved(stage: Stage, save: Callable[[Any, Path], None], adapter: bool = False) -> dict[str, Any]:
    """What ``save`` wrote, loaded again, against what was trained."""
    engine = bert_engine(stage, adapter)
    trained = values(engine.module)
    save(engine, stage.folder / "saved")
    _met()
    found = reloaded(stage.folder / "saved", adapter, stage.folder / "base")
    return {"differing": differing(found, trained), "partitioned": partitioned(engine.module)}


@case
def saved_by_the_script(stage: Stage) -> dict[str, Any]:
    return saved(stage, lambda engine, out: engine.module.save_pretrained(out))


@case
def saved_by_the_script_saying_who_writes(stage: Stage) -> dict[str, Any]:
    main = stage.rank == 0
    return saved(stage, lambda engine, out: engine.module.save_pretrained(out, is_main_process=main))


@case
def saved_on_one_rank(stage: Stage) -> dict[str, Any]:
    def save(engine: Any, out: Path) -> None:
        if stage.rank == 0:
            engine.module.save_pretrained(out)

    return saved(stage, save)


@case
def adapter_saved_by_the_script(stage: Stage) -> dict[str, Any]:
    return saved(stage, lambda engine, out: engine.module.save_pretrained(out), adapter=True)


@case
def adapter_saved_on_one_rank(stage: Stage) -> dict[str, Any]:
    def save(engine: Any, out: Path) -> None:
        if stage.rank == 0:
            engine.module.save_pretrained(out)

    return saved(stage, save, adapter=True)


@case
def adapter_put_in_later(stage: Stage) -> dict[str, Any]:
    """What rank 0 alone asks for of an adapter that came after the engine: it is whole on every rank."""
    import peft

    model = bert_engine(stage, adapter=True).module
    model.add_adapter("later", peft.LoraConfig(r=2, target_modules=["query", "value"]))
    own = [(name, value) for name, value in model.named_parameters() if ".later." in name]
    right = {name.replace(".later.", "."): value.detach() for name, value in own}
    if stage.rank:
        return {"differing": []}
    found = peft.get_peft_model_state_dict(model, adapter_name="later")
    return {"differing": differing(found, right)}


@case
def gathered_dtypes(stage: Stage) -> dict[str, Any]:
    """A weight in bytes beside a bias: trained where ZeRO-3 keeps both whole and where not, and saved."""
    import deepspeed
    import torch

    class Bytes(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            drawn = torch.randint(256, (8, 8), dtype=torch.uint8)
            self.weight = torch.nn.Parameter(drawn, requires_grad=False)
            self.bias = torch.nn.Parameter(torch.zeros(8))

        def forward(self, x: Any) -> Any:
            return torch.nn.functional.linear(x, self.weight / 256 - 0.5, self.bias)

    def made() -> Any:
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(8, 8), Bytes(), torch.nn.Linear(8, 1), torch.nn.Flatten(0))

    def trained(model: Any) -> list[Any]:
        return [parameter for parameter in model.parameters() if parameter.requires_grad]

    rows = torch.ones(2, 8).cumsum(1)
    plain = made()
    optimizer = torch.optim.AdamW(trained(plain), lr=1e-2)
    for _ in range(2):
        plain(rows).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    found = []
    for whole in (0, 10_000):  # elements of a weight that stays whole
        said = {
            "stage3_param_persistence_threshold": whole,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
        # DeepSpeed takes words out of what it is told.
        config = copy.deepcopy({**ZERO3, "zero_optimization": {"stage": 3, **said}})
        model = made()
        engine = deepspeed.initialize(model=model, model_parameters=trained(model), config=config)[0]
        for _ in range(2):
            engine.backward(engine(rows).square().sum())
            engine.step()
        engine.save_16bit_model(str(stage.folder / f"{whole}"), "model.bin")
        deepspeed.comm.barrier()
        saved = torch.load(stage.folder / f"{whole}" / "model.bin")
        found += differing({name: value.float() for name, value in saved.items()}, values(plain))
    return {"differing": found}


@case
def state_dict_saved(stage: Stage) -> dict[str, Any]:
    """Each of the ways to write it down; ``written`` names the files that came to be."""
    import safetensors.torch
    import torch

    engine = bert_engine(stage)
    plain = engine.module.state_dict()
    copied = {name: value.cpu().clone() for name, value in plain.items()}
    ways: dict[str, Callable[[Path], None]] = {
        "torch.save": lambda path: torch.save(plain, path),
        "nested": lambda path: torch.save({"model": plain, "epoch": 1}, path),
        "copied": lambda path: torch.save(copied, path),
        "prefixed": lambda path: torch.save({f"module.{k}": v for k, v in plain.items()}, path),
        "model": lambda path: torch.save(engine.module, path),
        "safetensors": lambda path: safetensors.torch.save_file(copied, path),
    }
    written, told = [], {}
    for name, way in ways.items():
        path = stage.folder / f"{name}{stage.rank}"
        try:
            way(path)
        except Exception as error:
            told[name] = str(error)
        if path.exists():
            written.append(name)
    return {"differing": written, "told": told}


@case
def empty_tensors_of_users(stage: Stage) -> dict[str, Any]:
    """Empty tensors that are meant, gathered state dicts, models on meta: written as ever."""
    import deepspeed
    import safetensors.torch
    import torch

    engine = bert_engine(stage)
    engine.module.state_dict()
    wrong = []
    data = {"boxes": torch.empty(0, 4), "weight": torch.empty(0), "bert.boxes.weight": torch.empty(0)}
    torch.save({"rows": [data]}, stage.folder / f"data{stage.rank}")
    safetensors.torch.save_file(data, stage.folder / f"data{stage.rank}.safetensors")
    module = torch.nn.BatchNorm1d(2)
    module.register_buffer("none", torch.empty(0))
    torch.save(module.state_dict(), stage.folder / f"module{stage.rank}")
    with torch.device("meta"):
        torch.save(torch.nn.Linear(2, 2).state_dict(), stage.folder / f"meta{stage.rank}")
    right = values(engine.module)
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        torch.save(engine.module.state_dict(), stage.folder / f"gathered{stage.rank}")
        engine.module.save_pretrained(stage.folder / f"own{stage.rank}")
    found = torch.load(stage.folder / f"gathered{stage.rank}", weights_only=True)
    wrong += [name for name, value in found.items() if not value.float().equal(right[name])]
    wrong += differing(reloaded(stage.folder / f"own{stage.rank}", False, stage.folder), right)
    return {"differing": wrong, "partitioned": partitioned(engine.module)}


def by_the_trainer(stage: Stage, kind: str, adapter: bool = False, gather: bool = True) -> dict[str, Any]:
    """HF Trainer; ``kind``: its own ``_save``, one that ignores the state dict, a callback that saves."""
    import peft
    import torch
    import transformers

    class Ignoring(transformers.Trainer):  # type: ignore[misc]
        def _save(self, output_dir: Any = None, state_dict: Any = None) -> None:
            self.model.save_pretrained(output_dir)

    class Saving(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            if kind == "callback" or stage.rank == 0:
                model.save_pretrained(stage.folder / "saved")

    folder = stage.folder / "base"
    torch.manual_seed(4)
    if stage.rank == 0:
        transformers.BertForSequenceClassification(tiny_bert()).save_pretrained(folder)
    _met()
    zero = {**ZERO3["zero_optimization"], "stage3_gather_16bit_weights_on_model_save": gather}
    arguments = transformers.TrainingArguments(
        output_dir=str(stage.folder / "out"),
        per_device_train_batch_size=1,
        max_steps=1,
        learning_rate=1e-2,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        deepspeed={**ZERO3, "zero_optimization": zero},
    )
    model = transformers.BertForSequenceClassification.from_pretrained(folder)
    if adapter:
        lora = peft.LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["classifier"])
        model = peft.get_peft_model(model, lora)
    data = [{name: row[0] for name, row in bert_batch(number % 2).items()} for number in range(4)]
    known = Ignoring if kind == "ignoring" else transformers.Trainer
    callbacks = [Saving()] if kind.startswith("callback") else []
    trainer = known(model, arguments, train_dataset=data, callbacks=callbacks)
    trainer.train()
    trained = values(trainer.model)
    if not callbacks:
        trainer.save_model(str(stage.folder / "saved"))
    _met()
    if not (adapter or gather):  # DeepSpeed's own checkpoint, and no weights beside it
        files = sorted(path.name for path in (stage.folder / "saved").iterdir())
        return {
            "differing": [name for name in files if name.endswith((".safetensors", ".bin"))],
            "files": files,
        }
    found = reloaded(stage.folder / "saved", adapter, folder)
    return {"differing": differing(found, trained)}


TRAINER = {
    "trainer": ("own", False, True),
    "trainer-ignoring": ("ignoring", False, True),
    "trainer-ignoring-ungathered": ("ignoring", False, False),
    "trainer-adapter": ("own", True, True),
    "trainer-adapter-ungathered": ("own", True, False),
    "trainer-adapter-ignoring": ("ignoring", True, True),
    "trainer-callback": ("callback", False, True),
    "trainer-callback-on-one-rank": ("callback on one rank", False, True),
}
for _name, (_kind, _adapter, _gather) in TRAINER.items():
    CASES[_name] = functools.partial(by_the_trainer, kind=_kind, adapter=_adapter, gather=_gather)


# --- the runner -----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.outside")
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", action="append", default=[], metavar="KIND=FOLDER")
    parser.add_argument("--patched", action="store_true", help="import vlmpatch first")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a case may take")
    asked = parser.parse_args()
    if asked.patched:
        import vlmpatch  # noqa: F401
    from vlmpatch_lab import engines

    engines.preload_engine()
    models = dict(pair.split("=", 1) for pair in asked.model)
    for kind in models:
        CASES[f"loaded-{kind}"] = functools.partial(_loaded, kind=kind)
        CASES[f"own-zero-init-{kind}"] = functools.partial(own_zero_init, kind=kind)
    for name in asked.cases:
        print(json.dumps(run(name, models, asked.out / name, asked.limit)), flush=True)


def run(name: str, models: dict[str, str], folder: Path, limit: float) -> dict[str, Any]:
    """Fork the two ranks of one case; returns what each reports, and which had to be killed."""
    from vlmpatch_lab import forks
    from vlmpatch_lab.ports import free_port

    folder.mkdir(parents=True, exist_ok=True)
    codes = forks.run(member, name, models, folder, world=2, port=free_port(), limit=limit)
    hung = [rank for rank, code in enumerate(codes) if code == -signal.SIGKILL]
    written = [folder / f"rank{rank}.json" for rank in (0, 1)]
    found = [json.loads(path.read_text()) if path.exists() else {"error": "killed"} for path in written]
    for path in written:
        path.unlink(missing_ok=True)
    return {"case": name, "ranks": found, "hung": hung}


def member(name: str, models: dict[str, str], folder: Path, rank: int, port: int) -> None:
    """One rank."""
    from vlmpatch_lab import collectives, ranks

    ranks.log_to(folder / f"rank{rank}.log")
    report: dict[str, Any] = {}
    try:
        with ranks.process_group(rank, port):
            import deepspeed

            collectives.wait_for_every_collective()  # first: DeepSpeed keeps the functions it finds
            deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
            report |= CASES[name](Stage(rank, models, folder))
    except Exception as error:
        traceback.print_exc()
        report["error"] = f"{type(error).__name__}: {error}"
        raise SystemExit(1) from None
    finally:
        report["patches"] = ranks.states()
        (folder / f"rank{rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
