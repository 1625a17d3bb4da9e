"""Whole frameworks as cells: they load, wrap and train the tiny model by their own means.

Nothing of a framework is replaced. Its gradients are read just before the first optimizer step, by a
callback of transformers' Trainer, or where DeepSpeed's engine is about to step. Runs in a rank.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.fsdp
import transformers

from tests.families._shared.files import SHAREGPT
from tests.families._shared.sizes import TEXT
from tests.lab import field, in_parts, long_run, resumed
from vlmpatch_lab import engines, loading
from vlmpatch_lab.cell import Cell
from vlmpatch_lab.collectives import wait_for_every_collective
from vlmpatch_lab.samples import Samples

WRAPPED = "_checkpoint_wrapped_module."  # what torch's checkpoint_wrapper puts into names
SAVED = "state_dict_type"  # of FSDP: whether a checkpoint is written whole or in shards
LOST_AFTER = 1  # optimizer steps a framework takes


def train(cell: Cell, folder: Path, out: Path) -> dict[str, Any]:
    """Train ``cell`` with its framework; the gradients of the first step go to ``out``."""
    if cell.trainer in field.SCENARIOS:
        return field.train(cell, folder, out)
    recorded = record(out)
    if cell.engine == "zero3":
        wait_for_every_collective()
    with tempfile.TemporaryDirectory(prefix="trainer-") as output:
        TRAINERS[cell.trainer](cell, folder, Path(output) / "output")
    if not recorded:
        raise RuntimeError(f"{cell.trainer} took no optimizer step")
    return {"losses": [], "digest": None}


def preload(trainer: str) -> None:
    """Import the framework once, before the ranks are forked."""
    importlib.import_module(PACKAGES.get(trainer, "transformers"))


def record(out: Path) -> list[str]:
    """Arrange that the first step's gradients are saved; the list is empty until they are."""
    done: list[str] = []

    class Recorder(transformers.TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            models.append(kwargs["model"])
            if not hasattr(transformers.TrainerCallback, "on_pre_optimizer_step"):  # before 4.45
                optimizer = kwargs["optimizer"].optimizer
                if isinstance(optimizer, torch.optim.Optimizer):  # DeepSpeed's are none
                    optimizer.register_step_pre_hook(lambda *_: save(lambda parameter: parameter.grad))

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            save(lambda parameter: parameter.grad)

    def save(gradient: Callable[[Any], Any]) -> None:
        if done:
            return
        done.append(str(out))
        with gathered(models[-1]):
            named = ((n, gradient(p)) for n, p in models[-1].named_parameters() if p.requires_grad)
            found = {plain(n): whole(g.detach()) for n, g in named if g is not None}
            torch.save({name: value.float().clone() for name, value in found.items()}, out)

    models: list[Any] = []
    call(Recorder)
    deepspeed = importlib.import_module("deepspeed")
    step = deepspeed.DeepSpeedEngine.step

    def recording_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_gradient_accumulation_boundary():
            save(deepspeed.utils.safe_get_full_grad)
        return step(self, *args, **kwargs)

    deepspeed.DeepSpeedEngine.step = recording_step
    return done


def call(callback: Callable[[], Any]) -> None:
    """Every Trainer made from now on calls one of these."""
    handler = importlib.import_module("transformers.trainer_callback").CallbackHandler
    set_up = handler.__init__

    def set_up_with_callback(self: Any, *args: Any, **kwargs: Any) -> None:
        set_up(self, *args, **kwargs)
        self.callbacks.append(callback())

    handler.__init__ = set_up_with_callback


def begin(seed: int) -> None:
    """Give LoRA the same weights under every engine: under ZeRO-3 other numbers are drawn before them."""
    made = transformers.Trainer.__init__

    @functools.wraps(made)  # whose parameters frameworks ask for
    def fill(self: Any, model: Any = None, *args: Any, **kwargs: Any) -> None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name and parameter.requires_grad and "magnitude" not in name:
                    drawn = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
                    parameter.copy_(torch.randn(parameter.shape, generator=drawn) * 0.1)
        made(self, model, *args, **kwargs)

    transformers.Trainer.__init__ = fill


@contextlib.contextmanager
def summed() -> Iterator[dict[str, Any]]:
    """Within it DeepSpeed's steps add up their gradients, by name."""
    found: dict[str, Any] = {}
    deepspeed = importlib.import_module("deepspeed")
    step = deepspeed.DeepSpeedEngine.step

    def adding_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_gradient_accumulation_boundary():
            for name, parameter in self.module.named_parameters():
                found[name] = found.get(name, 0) + deepspeed.utils.safe_get_full_grad(parameter)
        return step(self, *args, **kwargs)

    deepspeed.DeepSpeedEngine.step = adding_step
    yield found
    deepspeed.DeepSpeedEngine.step = step


def gathered(model: Any) -> contextlib.AbstractContextManager[Any]:
    """Within it FSDP1's parameters are whole, and their gradients with them."""
    if not isinstance(model, torch.distributed.fsdp.FullyShardedDataParallel):
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = model.summon_full_params(
        model, writeback=False, with_grads=True
    )
    return context


def plain(name: str) -> str:
    """By the name that the model gave it."""
    return name.replace(WRAPPED, "").replace(engines.Fsdp1.INSIDE, "")


def whole(tensor: Any) -> Any:
    """What FSDP2 keeps in shards, put together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


# --- arguments every Trainer understands -----------------------------------------------------------


def arguments(cell: Cell, output: Path) -> dict[str, Any]:
    said = {"reentrant": True, "nonreentrant": False}.get(cell.checkpointing)
    kwargs = {} if said is None else {"gradient_checkpointing_kwargs": {"use_reentrant": said}}
    zero = {"deepspeed": _deepspeed_config(cell)} if cell.engine.startswith("zero") else {}
    place = {} if zero else {"use_cpu": True, "ddp_backend": "gloo"}
    if zero:
        let_accelerate_see_all_ranks()
    return {
        "output_dir": str(output),
        "per_device_train_batch_size": 1,
        "max_steps": LOST_AFTER,
        "max_grad_norm": 0.0,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "gradient_checkpointing": cell.checkpointing != "off",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "bf16": False,
        **kwargs,
        **zero,
        **place,
    }


def _deepspeed_config(cell: Cell) -> dict[str, Any]:
    """Where it names no precision transformers 4 hands the model its images in fp16."""
    return {"fp16": {"enabled": "auto"}, **engines.deepspeed_config(cell)}


def model_with_lora(cell: Cell, folder: Path) -> Any:
    model = loading.load(cell, folder)
    return model if cell.tuning == "full" else loading.add_lora(model, vision=cell.tuning == "lora")


DEEPSPEED = {  # what is left to transformers
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "fp16": {"enabled": "auto"},  # transformers 4 hands images over in fp16 where no precision is named
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}


def place_of(
    engine: str, zero: dict[str, Any] | None = None, fsdp: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Arguments of a Trainer for where it runs.

    Args:
        engine: DDP (``ddp_unused`` searches for unused parameters), a stage of ZeRO, or a version of FSDP.
        zero: of DeepSpeed's ``zero_optimization``; what only ZeRO-3 knows is left out of the others.
        fsdp: of ``fsdp_config``.
    """
    if engine.startswith("zero"):
        known = {n: v for n, v in (zero or {}).items() if engine == "zero3" or not n.startswith("stage3")}
        return {"deepspeed": {**DEEPSPEED, "zero_optimization": {"stage": int(engine[-1]), **known}}}
    if engine.startswith("ddp"):
        search = {"ddp_find_unused_parameters": True} if engine == "ddp_unused" else {}
        return {"use_cpu": True, "ddp_backend": "gloo", **search}
    let_accelerate_shard_on_cpu(engine[-1])
    config = {"version": int(engine[-1]), "sync_module_states": False, **(fsdp or {})}
    return {"fsdp": "full_shard auto_wrap", "fsdp_config": config}


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "data" / f"{name}.jsonl").read_text().splitlines()]


# --- frameworks -----------------------------------------------------------------------------------


def hf(
    cell: Cell,
    folder: Path,
    output: Path,
    *,
    own_optimizer: bool = False,
    change: Callable[[Any], None] = lambda model: None,
) -> None:
    """transformers' own Trainer and a PeftModel, as most fine-tune scripts are."""
    said = said_of(cell, output)
    if own_optimizer and "deepspeed" in said:  # without an engine transformers makes it anyway
        del said["deepspeed"]["optimizer"]
    samples = Samples(cell, folder)
    data = [samples.image(number) for number in range(len(samples.ready or samples.rows))]
    settings = transformers.TrainingArguments(**said, remove_unused_columns=False)
    model = loading.prepare(dataclasses.replace(cell, checkpointing="off"), folder)
    if cell.input_grads:
        model.enable_input_require_grads()
    change(model)
    trainer = transformers.Trainer(model, settings, data_collator=lambda r: r[0], train_dataset=data)
    trainer.train()
    if cell.engine.startswith("fsdp") and not isinstance(trainer.model, _wrapper(cell.engine)):
        raise RuntimeError(f"accelerate made a {type(trainer.model).__name__} of the model, no {cell.engine}")


def _wrapper(engine: str) -> type:
    """What accelerate makes of a model under FSDP; torch has the second from 2.6 on."""
    named = {"fsdp1": "FullyShardedDataParallel", "fsdp2": "FSDPModule"}[engine]
    wrapper: type = getattr(torch.distributed.fsdp, named)
    return wrapper


def hf_resumed(
    cell: Cell, folder: Path, output: Path, *, kind: resumed.Kind = lambda number: "image"
) -> None:
    """A training that goes on from a checkpoint, held against the one that left it."""
    name_one_cpu()
    steps = {"max_steps": resumed.STEPS, "save_strategy": "steps", "save_steps": resumed.AT}
    more = {**steps, "logging_steps": 1, "lr_scheduler_type": "linear", "remove_unused_columns": False}
    resumed.check(cell, folder, output, lambda place: {**said_of(cell, place), **more}, kind)


def hf_resumed_text(cell: Cell, folder: Path, output: Path) -> None:
    """The same without an image anywhere: the vision tower never gets a gradient."""
    hf_resumed(cell, folder, output, kind=lambda number: "text")


def hf_resumed_mixed(cell: Cell, folder: Path, output: Path) -> None:
    """The same with steps without an image between steps with images."""
    hf_resumed(cell, folder, output, kind=resumed.mixed)


def hf_own_optimizer(cell: Cell, folder: Path, output: Path) -> None:
    """The same where transformers makes the optimizer and DeepSpeed is handed it."""
    hf(cell, folder, output, own_optimizer=True)


def hf_dropout(cell: Cell, folder: Path, output: Path) -> None:
    """The same with dropout in LoRA, which each rank draws from numbers of its own."""
    hf(cell, folder, output, change=drop)


def drop(model: Any) -> None:
    """Give ``model`` dropout, and each forward of a rank the same numbers to draw from under every engine."""
    long_run.add_dropout(model)

    def seed(*_: Any) -> None:
        torch.manual_seed(100 + torch.distributed.get_rank())

    model.register_forward_pre_hook(seed)


def hf_head_read(cell: Cell, folder: Path, output: Path) -> None:
    """The same where the loss multiplies by the head's weight itself, as fused ones do."""
    hf(cell, folder, output, change=lambda model: read_head(model, lambda weight: weight))


def hf_head_gathered(cell: Cell, folder: Path, output: Path) -> None:
    """The same where it gathers a weight that it finds sharded, as TRL does."""
    hf(cell, folder, output, change=lambda model: read_head(model, whole))


def read_head(model: Any, read: Callable[[Any], Any]) -> None:
    """Put a forward into ``model`` that never calls its head."""

    def forward(*args: Any, labels: torch.Tensor, **kwargs: Any) -> dict[str, torch.Tensor]:
        hidden = model.model(*args, **kwargs).last_hidden_state
        logits = torch.nn.functional.linear(hidden[:, :-1], read(model.get_output_embeddings().weight))
        return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())}

    model.forward = forward


def said_of(cell: Cell, output: Path) -> dict[str, Any]:
    """Arguments of a Trainer, those that shard included."""
    said = arguments(cell, output)
    return _sharded(cell, said) if cell.engine.startswith("fsdp") else said


def _sharded(cell: Cell, said: dict[str, Any]) -> dict[str, Any]:
    """Arguments that shard, with ``cell.config`` merged into ``fsdp_config``; the rest is by default.

    FSDP's ``activation_checkpointing`` is a word of that configuration, beside the model's own checkpointing.
    """
    version = cell.engine.removeprefix("fsdp")
    let_accelerate_shard_on_cpu(version)
    if SAVED in cell.config:  # transformers 4 leaves it to `accelerate launch`
        os.environ[f"FSDP_{SAVED.upper()}"] = cell.config[SAVED]
    fsdp = {
        "version": int(version),
        "sync_module_states": False,  # accelerate knows no CPU that could receive them
        **cell.config,
    }
    own = {"use_cpu": False, "optim": "adamw_torch"}
    return {**said, **own, "fsdp": "full_shard auto_wrap", "fsdp_config": fsdp}


def let_accelerate_shard_on_cpu(version: str) -> None:
    """accelerate shards where it finds an accelerator only; FSDP itself runs over gloo as well."""
    os.environ |= {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": version}  # as `accelerate launch` says it
    let_accelerate_see_all_ranks()
    _leave_on_cpu_what_is_there()


def let_accelerate_see_all_ranks() -> None:
    """Without an accelerator it takes DeepSpeed's and FSDP's ranks for one process."""
    state = importlib.import_module("accelerate.state")
    state.PartialState._prepare_backend = lambda *_: ("gloo", state.DistributedType.MULTI_GPU)
    name_one_cpu()


def _leave_on_cpu_what_is_there() -> None:
    """FSDP1 copies what it saves to the CPU and uses the memory it was in again, which here is the same."""
    flat = importlib.import_module("torch.distributed.fsdp._flat_param")
    flat.FlatParamHandle.to_cpu = lambda _: contextlib.nullcontext()
    optim: Any = importlib.import_module("torch.distributed.fsdp._optim_utils")
    unflatten = optim._unflatten_orig_param_states
    optim._unflatten_orig_param_states = lambda *args: unflatten(*args[:-1], False)


def name_one_cpu() -> None:
    """accelerate numbers CPUs as it does GPUs, and torch cannot load what was saved from ``cpu:0``."""

    def set_device(self: Any) -> None:
        self.device = torch.device("cpu")

    importlib.import_module("accelerate.state").PartialState.set_device = set_device


def trl_sft(cell: Cell, folder: Path, output: Path) -> None:
    import datasets
    import trl

    data = [
        {
            "prompt": [{"role": "user", "content": "describe the image"}],
            "completion": [turn],
            "images": [path],
        }
        for row in rows(folder, "sft")
        for turn in row["messages"][1:]
        for path in row["images"]
    ]
    images = datasets.Sequence(datasets.Image())
    settings = trl.SFTConfig(**said_of(cell, output), max_length=None)
    processor = "tokenizer" if cell.scenario == "old_names" else "processing_class"
    trainer = trl.SFTTrainer(
        model=model_with_lora(cell, folder),
        args=settings,
        train_dataset=datasets.Dataset.from_list(data).cast_column("images", images),
        **{processor: transformers.AutoProcessor.from_pretrained(folder)},
    )
    trainer.train()


def trl_dpo(cell: Cell, folder: Path, output: Path) -> None:
    import datasets
    import trl

    # A language model: TRL's DPO hands Qwen2-VL its images without their grid.
    data = [{"prompt": "describe", "chosen": " a cat", "rejected": f" hello {n}"} for n in range(8)]
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**{**TEXT, "vocab_size": 1024}))
    trainer = trl.DPOTrainer(
        model=loading.add_lora(model, vision=False),
        args=trl.DPOConfig(**said_of(cell, output)),
        train_dataset=datasets.Dataset.from_list(data),
        processing_class=transformers.AutoTokenizer.from_pretrained(folder),
    )
    trainer.train()


def swift(cell: Cell, folder: Path, output: Path, *, preference: bool = False, **more: Any) -> None:
    settings = arguments(cell, output)
    for unwanted in ("disable_tqdm", "deepspeed"):
        settings.pop(unwanted, None)
    settings |= {
        "model": str(folder),
        "model_type": cell.kind,
        "template": cell.kind,
        "torch_dtype": "float32",
        "fp16": False,
        "dataset": str(folder / "data" / ("dpo.jsonl" if preference else "sft.jsonl")),
        "split_dataset_ratio": 0,
        "dataset_num_proc": 1,
        "lora_rank": 4,
        "lora_dropout": 0,
        "freeze_vit": cell.tuning == "lora_llm",
    }
    settings["tuner_type"] = "full" if cell.tuning == "full" else "lora"
    if cell.engine.startswith("zero"):
        config = output.with_suffix(".deepspeed.json")
        said = engines.deepspeed_config(cell)
        del said["optimizer"]  # ms-swift's own files name none, and 4.6 looks into the one it makes
        config.write_text(json.dumps(said))
        settings["deepspeed"] = str(config)
    settings |= {"rlhf_type": "dpo"} if preference else {}
    swift_command("rlhf" if preference else "sft", settings | more)


def swift_command(verb: str, settings: dict[str, Any]) -> None:
    """``swift VERB`` and its arguments, by the names that 4.x has for them."""
    if old_swift():
        settings = {("train_type" if n == "tuner_type" else n): v for n, v in settings.items()}
    words = [word for name, value in settings.items() for word in (f"--{name}", *_said(value))]
    getattr(importlib.import_module("swift.llm" if old_swift() else "swift"), f"{verb}_main")(words)


def know_the_image(model: Path) -> None:
    """ms-swift's Qwen2-VL knows what stands for an image by its number in Qwen's own vocabulary."""
    home = "swift.llm.template.template.qwen" if old_swift() else "swift.template.templates.qwen"
    template = importlib.import_module(home).Qwen2VLTemplate
    config = json.loads((model / "config.json").read_text())
    template.image_token_id = config.get("image_token_id", template.image_token_id)


def swift_dpo(cell: Cell, folder: Path, output: Path) -> None:
    swift(cell, folder, output, preference=True)


def old_swift() -> bool:
    from importlib.metadata import version

    return version("ms-swift").startswith("3.")


def _said(value: Any) -> list[str]:
    if isinstance(value, list | tuple):
        return [str(each) for each in value]
    return [json.dumps(value) if isinstance(value, dict | bool) else str(value)]


def trl_grpo(cell: Cell, folder: Path, output: Path, **more: Any) -> None:
    """Answers to an image, each worth what its tokens are; what stands for an image is not among them."""
    import datasets

    data = [{**ASKED, "image": row["images"][0]} for row in rows(folder, "sft")]
    made = datasets.Dataset.from_list(data).cast_column("image", datasets.Image())
    _answer(cell, folder, output, made, **more)


def trl_grpo_mixed(cell: Cell, folder: Path, output: Path) -> None:
    """Answers to an image on one rank, and to a text on the other."""
    import datasets

    data = [{**ASKED, "images": row["images"] * (n % 2)} for n, row in enumerate(rows(folder, "sft"))]
    made = datasets.Dataset.from_list(data).cast_column("images", datasets.Sequence(datasets.Image()))
    _answer(cell, folder, output, made, shuffle_dataset=False)


def trl_grpo_lengths(cell: Cell, folder: Path, output: Path, side: str) -> None:
    """Answers to an image, after prompts of two lengths in a batch; the processor pads on ``side``."""
    import datasets

    told = "describe the image", "describe an image"
    asked = [[{"role": "user", "content": told[n % 2]}] for n in range(4)]
    data = [
        {"prompt": each, "image": row["images"][0]}
        for each, row in zip(asked, rows(folder, "sft"), strict=False)
    ]
    made = datasets.Dataset.from_list(data).cast_column("image", datasets.Image())
    _answer(cell, folder, output, made, side=side, per_device_train_batch_size=4, shuffle_dataset=False)


ASKED = {"prompt": [{"role": "user", "content": "describe the image"}]}


def _answer(cell: Cell, folder: Path, output: Path, data: Any, *, side: str = "left", **more: Any) -> None:
    import trl

    processor = transformers.AutoProcessor.from_pretrained(folder, padding_side=side)
    settings = trl.GRPOConfig(
        **{**said_of(cell, output), "per_device_train_batch_size": 2, **more},
        num_generations=2,
        max_completion_length=8,
        generation_kwargs={"suppress_tokens": processor.tokenizer.all_special_ids},
    )

    def reward(completion_ids: list[list[int]], **columns: Any) -> list[float]:
        return [sum(ids) % 97 / 97 for ids in completion_ids]

    trl.GRPOTrainer(
        model=model_with_lora(cell, folder),
        reward_funcs=reward,
        args=settings,
        train_dataset=data,
        processing_class=processor,
    ).train()


def trl_grpo_near(cell: Cell, folder: Path, output: Path) -> None:
    """The same, held near the model without its adapter, which then runs between answer and training."""
    trl_grpo(cell, folder, output, beta=0.04, gradient_accumulation_steps=2, max_steps=2)


def llamafactory_unused(cell: Cell, folder: Path, output: Path) -> None:
    """As rows without an image need it."""
    llamafactory(cell, folder, output, ddp_find_unused_parameters=True)


def llamafactory_full(cell: Cell, folder: Path, output: Path) -> None:
    """With the tower; LLaVA does not use the end of its own."""
    whole = {"freeze_vision_tower": False, "freeze_multi_modal_projector": False}
    llamafactory(cell, folder, output, finetuning_type="full", template="llava", **whole)


def llamafactory(cell: Cell, folder: Path, output: Path, **more: Any) -> None:
    run_exp = importlib.import_module("llamafactory.train.tuner").run_exp

    info = {"sft": {"file_name": "sft.jsonl", **SHAREGPT}}
    output.mkdir(parents=True, exist_ok=True)
    (output / "dataset_info.json").write_text(json.dumps(info))
    (output / "sft.jsonl").write_text((folder / "data" / "sft.jsonl").read_text())
    settings = arguments(cell, output)
    checkpointing = settings.pop("gradient_checkpointing")
    said = settings.pop("gradient_checkpointing_kwargs", None)
    reentrant = {"use_reentrant_gc": said["use_reentrant"]} if said else {}
    run_exp(
        {
            **settings,
            **reentrant,
            "disable_gradient_checkpointing": not checkpointing,
            "model_name_or_path": str(folder),
            "stage": "sft",
            "do_train": True,
            "finetuning_type": "lora",
            "lora_target": "all",
            "lora_rank": 4,
            "freeze_vision_tower": cell.tuning == "lora_llm",
            "dataset": "sft",
            "dataset_dir": str(output),
            "template": cell.kind,
            "cutoff_len": 512,
            "overwrite_cache": True,
            "preprocessing_num_workers": 1,
            "overwrite_output_dir": True,
            **more,
        }
    )


def axolotl_full(cell: Cell, folder: Path, output: Path) -> None:
    """With the tower; nothing is said of what LLaVA does not use of it, but in what is right."""
    search = True if cell.checkpointing == "off" else None
    axolotl(cell, folder, output, adapter=None, ddp_find_unused_parameters=search)


def axolotl(cell: Cell, folder: Path, output: Path, **more: Any) -> None:
    output.mkdir(parents=True, exist_ok=True)
    data = output / "sft.jsonl"
    data.write_text("".join(json.dumps(in_parts.row_of(row)) + "\n" for row in rows(folder, "sft")))
    said = arguments(cell, output)
    for foreign in ("per_device_train_batch_size", "disable_tqdm", "use_cpu", "report_to"):
        said.pop(foreign, None)
    said |= {
        "base_model": str(folder),
        "processor_type": "AutoProcessor",
        "chat_template": "tokenizer_default",
        "datasets": [{"path": str(data), **in_parts.DATASET}],
        "dataset_prepared_path": str(output / "prepared"),
        "skip_prepare_dataset": True,
        "remove_unused_columns": False,
        "sample_packing": False,
        "sequence_len": 512,
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "adapter": "lora",
        "lora_r": 4,
        "lora_alpha": 8,
        "lora_target_modules": r".*(layers|blocks)\.[0-9]+\..*(proj|qkv|fc1|fc2)",
        **dict.fromkeys(("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel"), False),
        "optimizer": "adamw_torch",
        "lr_scheduler": said.pop("lr_scheduler_type"),
        "ddp_find_unused_parameters": True,  # as rows without an image need it
        "attn_implementation": "eager",
        "fp16": False,
        **more,
    }
    config = output / "config.yaml"
    config.write_text(json.dumps(said))
    axolotl_command(config)


def axolotl_command(config: Path) -> None:
    """Without the accelerator that it looks for and torchvision's compiled image reader."""
    if version := json.loads(config.read_text()).get("fsdp_version"):
        let_accelerate_shard_on_cpu(str(version))
        _let_accelerate_make_meshes_of_cpus()
    else:
        _let_accelerate_meet_over_gloo()
    vars(importlib.import_module("transformers.image_utils"))["decode_image"] = _decoded
    settings = importlib.import_module("axolotl.cli.config").load_cfg(str(config))
    settings.device_map = {"": "cpu"}
    cli = importlib.import_module("axolotl.cli.args").TrainerCliArgs()
    transformers.set_seed(0)  # axolotl makes its LoRA weights before it sets a seed
    importlib.import_module("axolotl.cli.train").do_train(settings, cli)


def _let_accelerate_make_meshes_of_cpus() -> None:
    """axolotl names the device itself."""
    meshes = importlib.import_module("accelerate.parallelism_config").ParallelismConfig
    build = meshes.build_device_mesh
    meshes.build_device_mesh = lambda self, _: build(self, "cpu")


def _let_accelerate_meet_over_gloo() -> None:
    state = importlib.import_module("accelerate.state")
    state.PartialState._prepare_backend = lambda *_: ("gloo", state.DistributedType.MULTI_CPU)


def _decoded(path: str, mode: Any = None) -> Any:
    import numpy
    from PIL import Image

    return torch.from_numpy(numpy.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)


TRAINERS: dict[str, Callable[[Cell, Path, Path], None]] = {
    "hf": hf,
    "hf_dropout": hf_dropout,
    "hf_head_gathered": hf_head_gathered,
    "hf_head_read": hf_head_read,
    "hf_own_optimizer": hf_own_optimizer,
    "hf_resumed": hf_resumed,
    "hf_resumed_text": hf_resumed_text,
    "hf_resumed_mixed": hf_resumed_mixed,
    "trl_sft": trl_sft,
    "trl_dpo": trl_dpo,
    "swift_sft": swift,
    "swift_dpo": swift_dpo,
    "trl_grpo": trl_grpo,
    "trl_grpo_near": trl_grpo_near,
    "llamafactory_sft": llamafactory,
    "llamafactory_sft_unused": llamafactory_unused,
    "llamafactory_sft_full": llamafactory_full,
    "axolotl_sft": axolotl,
    "axolotl_sft_full": axolotl_full,
}
PACKAGES = {
    "hf": "transformers",
    "hf_dropout": "transformers",
    "hf_head_gathered": "transformers",
    "hf_head_read": "transformers",
    "hf_own_optimizer": "transformers",
    "hf_resumed": "transformers",
    "hf_resumed_text": "transformers",
    "hf_resumed_mixed": "transformers",
    "trl_sft": "trl",
    "trl_dpo": "trl",
    "swift_sft": "swift",
    "swift_dpo": "swift",
    "trl_grpo": "trl",
    "trl_grpo_near": "trl",
    "llamafactory_sft": "llamafactory",
    "llamafactory_sft_unused": "llamafactory",
    "llamafactory_sft_full": "llamafactory",
    "axolotl_sft": "axolotl",
    "axolotl_sft_full": "axolotl",
}
