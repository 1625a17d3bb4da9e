"""A fine-tune script of the structure of MiniCPM-V's: its arguments, freezing, LoRA, trainer and save."""

import json
from dataclasses import dataclass, field
from functools import partial
from types import MethodType

import numpy as np
import torch
import transformers
from accelerate.utils import DistributedType
from dataset import SupervisedDataset, data_collator
from peft import LoraConfig, get_peft_model
from trainer import CPMTrainer
from transformers import AutoModel, AutoTokenizer


@dataclass
class ModelArguments:
    model_name_or_path: str | None = field(default="openbmb/MiniCPM-V-2")


@dataclass
class DataArguments:
    data_path: str = field(default=None)
    eval_data_path: str = field(default=None)


@dataclass
class TrainingArguments(transformers.TrainingArguments):
    cache_dir: str | None = field(default=None)
    optim: str = field(default="adamw_torch")
    model_max_length: int = field(default=2048)
    tune_vision: bool | None = field(default=True)
    tune_llm: bool | None = field(default=True)
    llm_type: str = field(default="minicpm")
    use_lora: bool | None = field(default=False)
    max_slice_nums: int | None = field(default=9)


@dataclass
class LoraArguments:
    lora_r: int = 64
    lora_alpha: int = 64
    lora_dropout: float = 0.05
    lora_target_modules: str = r"llm\..*layers\.\d+\.self_attn\.(q_proj|k_proj|v_proj)"
    lora_bias: str = "none"
    lora_layers_to_transform: list[int] | None = None
    lora_layer_replication: list[tuple[int, int]] | None = None


def safe_save_model_for_hf_trainer(trainer, output_dir: str, bias="none"):
    if trainer.args.should_save and trainer.args.local_rank == 0:
        trainer.save_model(output_dir)


def build_transform():
    def transform(image):
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 127.5 - 1

    return transform


def make_supervised_data_module(
    tokenizer, data_args, transform, data_collator=None, max_length=2048, **kwargs
):
    def load(path):
        with open(path) as file:
            return SupervisedDataset(json.load(file), transform, tokenizer, max_length=max_length, **kwargs)

    return {
        "train_dataset": load(data_args.data_path),
        "eval_dataset": load(data_args.eval_data_path) if data_args.eval_data_path else None,
        "data_collator": partial(data_collator, max_length=max_length),
    }


def add_lora(model, training_args, lora_args):
    if training_args.tune_llm:
        raise ValueError("The model cannot simultaneously adjust LLM parameters and apply LoRA.")
    for _, param in model.llm.named_parameters():
        param.requires_grad = False
    modules_to_save = ["embed_tokens", "resampler"]
    if training_args.tune_vision:
        modules_to_save.append("vpm")
    lora_config = LoraConfig(
        r=lora_args.lora_r,
        lora_alpha=lora_args.lora_alpha,
        target_modules=lora_args.lora_target_modules,
        lora_dropout=lora_args.lora_dropout,
        bias=lora_args.lora_bias,
        layers_to_transform=lora_args.lora_layers_to_transform,
        modules_to_save=modules_to_save,
    )
    if not hasattr(model, "get_input_embeddings"):
        model.get_input_embeddings = MethodType(lambda self: self.llm.get_input_embeddings(), model)
    model = get_peft_model(model, lora_config)
    if training_args.gradient_checkpointing:
        model.enable_input_require_grads()
    return model


def train():
    parser = transformers.HfArgumentParser((ModelArguments, DataArguments, TrainingArguments, LoraArguments))
    model_args, data_args, training_args, lora_args = parser.parse_args_into_dataclasses()
    if getattr(training_args, "deepspeed", None):
        training_args.distributed_state.distributed_type = DistributedType.DEEPSPEED
    half = torch.bfloat16 if training_args.bf16 else torch.float32
    compute_dtype = torch.float16 if training_args.fp16 else half

    model = AutoModel.from_pretrained(
        model_args.model_name_or_path,
        trust_remote_code=True,
        torch_dtype=compute_dtype,
        device_map=None,
        init_vision=True,
        init_audio=False,
        init_tts=False,
    )
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path, trust_remote_code=True)
    if not training_args.tune_vision:
        model.vpm.requires_grad_(False)
    if not training_args.tune_llm:
        model.llm.requires_grad_(False)
    if training_args.use_lora:
        model = add_lora(model, training_args, lora_args)

    model.config.slice_config.max_slice_nums = training_args.max_slice_nums
    data_module = make_supervised_data_module(
        tokenizer=tokenizer,
        data_args=data_args,
        transform=build_transform(),
        data_collator=data_collator,
        slice_config=model.config.slice_config.to_dict(),
        llm_type=training_args.llm_type,
        patch_size=model.config.patch_size,
        query_nums=model.config.query_num,
        batch_vision=model.config.batch_vision_input,
        max_length=training_args.model_max_length,
    )
    training_args.gradient_checkpointing_kwargs={"use_reentrant":False}  # fmt: skip
    trainer = CPMTrainer(model=model, tokenizer=tokenizer, args=training_args, **data_module)
    trainer.train()
    trainer.save_state()
    safe_save_model_for_hf_trainer(trainer=trainer, output_dir=training_args.output_dir)


if __name__ == "__main__":
    train()
