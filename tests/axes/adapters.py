"""What is added to a model, by PEFT above all: one function a kind, from a model to what is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

from tests.axes.parallel import with_experts
from vlmpatch_lab.loading import TOWERS

try:  # rows that need what is missing here end with an error, the others run
    import peft
except ImportError:
    peft = None

ZERO_AT_FIRST = ("lora_B", "vera_lambda_b", "lora_E")  # which would hide the gradients of what comes before
RANK = {"r": 4, "lora_alpha": 8}
VIRTUAL = {"num_virtual_tokens": 4, "task_type": "CAUSAL_LM"}


def linears(model: torch.nn.Module, tower: bool = True) -> list[str]:
    """The linear layers of every numbered block, which checkpointing recomputes."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
        and any(part.isdigit() for part in name.split(".")[:-1])
        and "merger" not in name
        and (tower or not any(part in name for part in TOWERS))
    ]


def adapted(model: Any, config: Any) -> Any:
    torch.manual_seed(1)
    tuned = peft.get_peft_model(model, config)
    for name, parameter in tuned.named_parameters():
        if any(part in name for part in ZERO_AT_FIRST):
            torch.nn.init.normal_(parameter, std=0.1)
    return tuned


def lora(**said: Any) -> Callable[[Any], Any]:
    return lambda model: adapted(model, peft.LoraConfig(**{**RANK, "target_modules": linears(model), **said}))


def vera(model: Any) -> Any:
    targets = [name for name in linears(model, tower=False) if name.endswith(("q_proj", "o_proj"))]
    return adapted(model, peft.VeraConfig(r=4, target_modules=targets))


def ia3(model: Any) -> Any:
    forward = [name for name in linears(model) if name.endswith(("down_proj", "fc2"))]
    return adapted(model, peft.IA3Config(target_modules=linears(model), feedforward_modules=forward))


def adalora(model: Any) -> Any:
    config = peft.AdaLoraConfig(
        init_r=4, target_r=2, lora_alpha=8, total_step=100, target_modules=linears(model)
    )
    return adapted(model, config)


def two(model: Any) -> Any:
    """Two adapters on the same layers, of which the second is trained."""
    config = peft.LoraConfig(**RANK, target_modules=linears(model))
    tuned = adapted(model, config)
    tuned.add_adapter("second", config)
    tuned.set_adapter("second")
    for name, parameter in tuned.named_parameters():
        if "lora_B.second" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return tuned


def both(model: Any) -> Any:
    """The same, and an optimizer is told of both."""
    tuned = two(model)
    for name, parameter in tuned.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return tuned


def quantized(**said: Any) -> Callable[[Any], Any]:
    """LoRA on the same checkpoint as bitsandbytes loads it, prepared by PEFT as scripts do."""

    def made(model: Any) -> Any:
        config = transformers.BitsAndBytesConfig(**said)
        folder, dtype = model.config._name_or_path, model.dtype
        small = type(model).from_pretrained(folder, torch_dtype=dtype, quantization_config=config)
        small.config.use_cache = False
        return lora()(peft.prepare_model_for_kbit_training(small, use_gradient_checkpointing=False).train())

    return made


def nf4(storage: torch.dtype) -> Callable[[Any], Any]:
    """QLoRA; ``storage`` is the dtype in which a pair of 4 bits lies, or several."""
    return quantized(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
        bnb_4bit_quant_storage=storage,
    )


def conv(model: Any) -> Any:
    """The tower's first layer too, a convolution."""
    return adapted(model, peft.LoraConfig(**RANK, target_modules=[*linears(model), "patch_embed.proj"]))


ADAPTERS: dict[str, Callable[[Any], Any]] = {
    "": lambda model: model,
    "lora": lora(),
    "dropout": lora(lora_dropout=0.1),
    "dora": lora(use_dora=True),
    "rslora": lora(use_rslora=True),
    "saved": lora(modules_to_save=["merger", "lm_head"]),
    "token_indices": lora(trainable_token_indices=[3, 5, 8]),
    "all_linear": lora(target_modules="all-linear"),
    "vera": vera,
    "ia3": ia3,
    "adalora": adalora,
    "prefix": lambda model: adapted(model, peft.PrefixTuningConfig(**VIRTUAL)),
    "prompt": lambda model: adapted(model, peft.PromptTuningConfig(**VIRTUAL)),
    "two": two,
    "both": both,
    "conv": conv,
    "nf4": nf4(torch.uint8),
    "nf4_as_floats": nf4(torch.float32),
    "int8": quantized(load_in_8bit=True),
    "experts": with_experts,
}
