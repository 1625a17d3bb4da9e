"""Runs in a rank: a program as its repository has it, and what its training came to.

    python start.py RESULT FOLDERS SETTINGS SCRIPT ARGUMENT …

``SETTINGS`` is JSON: ``unused``, packages that are imported and do nothing here; ``absent``, names that
are imported and that this stack's release does not have; ``set``, values that the repository asks its users
to edit in a file; ``texts``, functions of unused packages that have to give a text; ``hub``, folders by the
names of data sets that a program loads from the hub; ``joined``: its ranks are joined before it begins, for
it would ask for NCCL and count GPUs; ``fsdp``, the version of FSDP that shards, if one does. ``RESULT`` is
what the training came to: the log, and weights.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import json
import os
import runpy
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest import mock

from tests.lab import trainers

STANDINS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "standins")
FLASH = ("flash_attn", "flash_attn.bert_padding", "flash_attn.layers.rotary")


class _Unused(ModuleType):
    """A package of which everything there is does nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__, self.__spec__, self.__version__ = [], ModuleSpec(name, None), "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=f"{self.__name__}.{name}")


class _Parts(Loader, MetaPathFinder):
    """Finds whatever is asked for of packages that do nothing."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.startswith(self.packages) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Unused(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def main() -> None:
    result, folders, settings, script, *arguments = sys.argv[1:]
    asked = json.loads(settings)
    sys.path[:1] = [STANDINS, *folders.split(os.pathsep)]
    for unused in asked.get("unused", ()):
        for name in itertools.accumulate(unused.split("."), "{}.{}".format):
            if name == unused or not importlib.util.find_spec(name):
                sys.modules.setdefault(name, _Unused(name))
    sys.meta_path.append(_Parts(tuple(f"{unused}." for unused in asked.get("unused", ()))))
    without_a_gpu()
    if asked.get("joined"):
        _joined()
    if asked.get("fsdp"):
        trainers.let_accelerate_shard_on_cpu(asked["fsdp"])
    for place in asked.get("absent", ()):
        module, _, name = place.partition(":")
        setattr(importlib.import_module(module), name, mock.MagicMock(name=place))
    for place in asked.get("texts", ()):
        module, _, name = place.partition(":")
        setattr(importlib.import_module(module), name, lambda *arguments, said=name, **more: said)
    for place, value in asked.get("set", {}).items():
        module, _, name = place.partition(":")
        vars(importlib.import_module(module))[name].update(value)
    _found_here(asked.get("hub", {}))
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    _record(result)
    _seed()
    runpy.run_path(script, run_name="__main__")


def without_a_gpu() -> None:
    """``flash_attention_2`` may be asked for, the stand-in computes it; and a GPU may be waited for."""
    import torch
    import transformers.utils.import_utils as asked

    for name in ("synchronize", "empty_cache", "set_device"):
        setattr(torch.cuda, name, lambda *arguments: None)
    for kind in (torch.nn.Module, torch.Tensor):
        kind.cuda = lambda self, *arguments, **more: self
    counted = torch.histc  # a GPU counts whole numbers
    torch.histc = lambda values, *arguments, **more: counted(values.float(), *arguments, **more).to(values)

    asked.is_flash_attn_2_available = lambda: True
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers") and "is_flash_attn_2_available" in vars(module):
            vars(module)["is_flash_attn_2_available"] = asked.is_flash_attn_2_available
    _attention_of_the_stand_in()
    from transformers import PreTrainedModel, training_args

    # A CPU computes in bfloat16; some releases ask DeepSpeed's users for a GPU that does.
    vars(training_args)["is_torch_bf16_gpu_available"] = lambda: True
    for name in ("_flash_attn_can_dispatch", "_flash_attn_2_can_dispatch", "_check_and_enable_flash_attn_2"):
        if hasattr(PreTrainedModel, name):
            setattr(PreTrainedModel, name, _as_asked)


def _joined() -> None:
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    torch.cuda.device_count = lambda: 1


def _attention_of_the_stand_in() -> None:
    """What some releases import as they are imported themselves, if it is there."""
    if not importlib.util.find_spec("transformers.modeling_flash_attention_utils"):
        return
    from transformers import modeling_flash_attention_utils as used

    modules = [importlib.import_module(name) for name in FLASH]
    functions = {name: value for module in modules for name, value in vars(module).items()}
    for name, value in {**functions, "_flash_supports_window_size": False}.items():
        if not name.startswith("__") and vars(used).get(name) is None:
            setattr(used, name, value)


def _found_here(hub: dict[str, str]) -> None:
    """Data sets of the hub by their names, from folders."""
    if not hub:
        return
    import datasets

    load = datasets.load_dataset
    datasets.load_dataset = lambda name, *words, **more: load(hub.get(name, name), *words, **more)


def _as_asked(self: Any, config: Any = None, *arguments: Any, **more: Any) -> Any:
    """Whichever of these it stands for: the oldest is a class method that returns its configuration."""
    if isinstance(config, int) or config is None:
        return True
    config._attn_implementation = "flash_attention_2"
    return config


def _seed() -> None:
    """Adapters are made before the Trainer sets its seed."""
    import torch

    torch.manual_seed(0)


def _record(result: str) -> None:
    """Have every Trainer write what its training came to, as its last callback."""
    from transformers import TrainerCallback, trainer

    class Recorder(TrainerCallback):  # type: ignore[misc]
        def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
            _write(result, state, model)

    trainer.DEFAULT_CALLBACKS.append(Recorder)


def _write(result: str, state: Any, model: Any) -> None:
    logged = state.log_history
    sums: dict[str, float] = {}
    with trainers.gathered(model):
        for name, parameter in model.named_parameters():
            with _whole(parameter):
                weights = trainers.whole(parameter.detach())
                sums[trainers.plain(name)] = float(weights.double().pow(2).sum())
    found = {
        "steps": int(state.global_step),
        "losses": [float(line["loss"]) for line in logged if "loss" in line],
        "norms": [float(line["grad_norm"]) for line in logged if "grad_norm" in line],
        "sums": sums,
    }
    if state.is_world_process_zero:
        with open(result, "w") as handle:
            json.dump(found, handle)


def _whole(parameter: Any) -> Any:
    """``parameter`` as one tensor, where ZeRO-3 holds a part of it."""
    if not hasattr(parameter, "ds_id"):
        return contextlib.nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([parameter])


if __name__ == "__main__":
    main()
