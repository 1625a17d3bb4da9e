"""LLaMA-Factory's launcher where ``cuda`` is the CPU: ``use_unsloth_gc`` names the device itself."""

import importlib
from typing import Any

import torch

to = torch.Tensor.to


def to_the_cpu(self: Any, *args: Any, **kwargs: Any) -> Any:
    return to(self, *("cpu" if each == "cuda" else each for each in args), **kwargs)


torch.Tensor.to = to_the_cpu
importlib.import_module("llamafactory.train.tuner").run_exp()
