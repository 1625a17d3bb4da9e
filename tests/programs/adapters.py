"""An adapter from one stack to another: saved here, loaded there in each of three ways.

    python -m tests.programs.adapters save|load MODEL ADAPTER [--patched]

``load`` prints a JSON line a way: how many of the saved tensors lie in the model afterwards.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    act, folder, adapter, *patched = sys.argv[1:]
    if patched:
        import vlmpatch  # noqa: F401
    ACTS[act](folder, adapter)


def model(folder: str) -> Any:
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, config.architectures[0])
    return kind.from_pretrained(folder, torch_dtype=torch.float32)


def save(folder: str, adapter: str) -> None:
    import peft
    import torch

    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "fc1"])
    tuned = peft.get_peft_model(model(folder), config)
    for parameter in tuned.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter)
    tuned.save_pretrained(adapter)


def from_pretrained(folder: str, adapter: str) -> Any:
    import peft

    return peft.PeftModel.from_pretrained(model(folder), adapter)


def load_adapter(folder: str, adapter: str) -> Any:
    import peft

    tuned = peft.get_peft_model(model(folder), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    tuned.load_adapter(adapter, "old")
    return tuned


def resume(folder: str, adapter: str) -> Any:
    """As HF Trainer does it: into the adapter that is there."""
    import peft

    tuned = peft.get_peft_model(model(folder), peft.LoraConfig.from_pretrained(adapter))
    tuned.load_adapter(adapter, tuned.active_adapter, is_trainable=True)
    return tuned


def load(folder: str, adapter: str) -> None:
    import torch
    from safetensors.torch import load_file

    saved = load_file(Path(adapter) / "adapter_model.safetensors")
    for way in (from_pretrained, load_adapter, resume):
        held = [value for name, value in way(folder, adapter).named_parameters() if "lora_" in name]
        found = [any(torch.equal(value, each) for each in held) for value in saved.values()]
        print(json.dumps({"way": way.__name__, "saved": len(saved), "loaded": sum(found)}), flush=True)


ACTS: dict[str, Callable[[str, str], None]] = {"save": save, "load": load}

if __name__ == "__main__":
    main()
