"""A model class of transformers in four modes: evaluation, and training without checkpointing and with both.

    python -m tests.lab.modes --out LINES [--only Llama,Gemma3n] [--known NAMES] [--patched]

runs inside a stack, imports every model of transformers once and forks a process for each class that neither
LINES nor NAMES has. What is right is the function of evaluation mode: with dropout at zero and batch norms as
they evaluate, training computes the same one, whatever recomputes it. A class whose training draws numbers
(two seeds, two results) is held against its own training without checkpointing and the same seed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import json
import pkgutil
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.families._shared import small
from tests.families._shared.sizes import IMAGE
from vlmpatch_lab import forks

MODES = ("off", "nonreentrant", "reentrant")
CHANCE = "by chance"
TOLERANCE = 1e-4  # relative, float32
LIMIT = 120.0  # seconds a class may take
LARGEST = 70_000_000  # parameters of a model that is still small: some have widths that nothing names
PROCESSOR = 40  # of them on a processor, whatever else the machine does
CACHES = ("past_key_values", "hidden_states", "attentions", "cross_attentions", "decoder_hidden_states")
ROWS, LENGTH = 2, 9
Inputs = dict[str, Any]


def classes(only: list[str]) -> list[Any]:
    """The model classes that say they support checkpointing and whose names begin as one of ``only``."""
    from transformers import PreTrainedModel, models

    found: dict[str, Any] = {}
    for name in _modules(models):
        with contextlib.suppress(Exception):  # it wants a package that is not there
            for value in vars(importlib.import_module(name)).values():
                if inspect.isclass(value) and issubclass(value, PreTrainedModel) and value.__module__ == name:
                    found[value.__name__] = value
    return [
        kind
        for name, kind in sorted(found.items(), key=lambda item: (_is_head(item[0]), item[0]))
        if not name.endswith("PreTrainedModel")
        and kind.supports_gradient_checkpointing
        and kind.config_class is not None
        and (not only or name.startswith(tuple(only)))
    ]


def _is_head(name: str) -> bool:
    """Whether a class only puts another head on what other classes are: those come last."""
    return "For" in name and not name.endswith(("ForCausalLM", "ForConditionalGeneration"))


def _modules(models: Any) -> Iterator[str]:
    for family in pkgutil.iter_modules(models.__path__, f"{models.__name__}."):
        with contextlib.suppress(Exception):
            folder = importlib.import_module(family.name)
            for module in pkgutil.iter_modules(folder.__path__, f"{family.name}."):
                name = module.name.rpartition(".")[2]
                if name.startswith("modeling_") and not name.startswith(("modeling_tf_", "modeling_flax_")):
                    yield module.name


# --- small models and what they are fed ------------------------------------------------------------

NATURAL = {name: value for name, value in small.LANGUAGE.items() if not name.endswith("layer_types")}
MORE = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": 128,
    "hidden_size_per_layer_input": 16,
    "laurel_rank": 8,
    "activation_sparsity_pattern": 0.0,
    "image_size": 32,
    "patch_size": 8,
    "rotary_dim": 8,
    "default_language": "en_XX",
    "num_mel_bins": 16,
    "max_source_positions": 16,
    "max_target_positions": 64,
    "mask_time_prob": 0.0,
    "layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "drop_path_rate": 0.0,
}
KINDS = {"layer_types": ["sliding_attention", "full_attention"] * 2}
# Sizes of heads and the rotary embedding as the class has them: what it derives from others fits those only.
DERIVED = {
    name: value
    for name, value in {**NATURAL, **MORE}.items()
    if name != "head_dim" and not name.startswith("rope_")
}
LATENT = {  # keys and values come out of a narrower tensor
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 4,
}
HYBRID = {  # every other layer attends, the rest keep a state
    "attn_layer_indices": [1, 3],
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "full_attention_interval": 2,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "use_mamba_kernels": False,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_d_ssm": 128,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "state_size": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
CHOICES = (
    {**NATURAL, **MORE},
    {**NATURAL, **MORE, **KINDS},
    {**NATURAL, **MORE, **small.MROPE},
    NATURAL,
    small.LANGUAGE,
    DERIVED,
    {**DERIVED, **LATENT},
    {**DERIVED, **HYBRID},
    {**DERIVED, **LATENT, **HYBRID},
)


def made(kind: Any, sizes: dict[str, Any]) -> Any:
    """A model of the class ``kind`` of the given sizes, where its configuration knows them."""
    import torch

    config = shrunk(kind.config_class(), sizes)
    torch.manual_seed(0)
    with contextlib.suppress(RuntimeError, NotImplementedError), torch.device("meta"):
        _refuse_large(kind(shrunk(kind.config_class(), sizes)))  # some ask for numbers, which meta has not
    model = kind(config)
    _refuse_large(model)
    for parameter in model.parameters():
        if not parameter.any():  # gates that start at zero would hide their gradients
            torch.nn.init.normal_(parameter, std=0.02)
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return model


def _refuse_large(model: Any) -> None:
    count = sum(parameter.numel() for parameter in model.parameters())
    if count > LARGEST:
        raise ValueError(f"{count:,} parameters are left")


def shrunk(config: Any, sizes: dict[str, Any]) -> Any:
    """``config`` with every part of it small, and nothing in it left to chance."""
    parts = {
        name: shrunk(value, small.TOWER if "vision" in name else sizes).to_dict()
        for name, value in vars(config).items()
        if hasattr(value, "to_dict") and name != "generation_config"
    }
    said = small.known(config, sizes | dict.fromkeys(small.IMAGE_TOKENS, IMAGE))
    if "mrope_section" in sizes:
        rope = {"rope_type": "default", "rope_theta": 1e4, **small.MROPE}
        said |= {name: rope for name in ("rope_parameters", "rope_scaling") if hasattr(config, name)}
    by_chance = {name: 0.0 for name, own in vars(config).items() if _is_chance(name, own)}
    return type(config)(**(said | by_chance | parts))


def _is_chance(name: str, own: Any) -> bool:
    return isinstance(own, float) and any(word in name for word in ("drop", "jitter", "mask_time_prob"))


def feeds(model: Any) -> Iterator[Inputs]:
    """What the model may take, by the names of its forward's parameters; the likelier first."""
    import torch

    names = inspect.signature(model.forward).parameters
    config = model.config
    ids = torch.randint(5, 100, (ROWS, LENGTH))
    seen = config if hasattr(config, "image_size") else getattr(config, "vision_config", config)
    size, channels = getattr(seen, "image_size", 32), getattr(seen, "num_channels", 3)
    size = size if isinstance(size, int) else size[0] if isinstance(size, (list, tuple)) else 32
    bins = getattr(config, "num_mel_bins", getattr(config, "feature_size", 16))
    frames = 2 * getattr(config, "max_source_positions", 16)
    hidden = getattr(config, "hidden_size", 64)
    text: Inputs = {}
    if "input_ids" in names:
        text["input_ids"] = ids
        if "attention_mask" in names:
            text["attention_mask"] = torch.ones_like(ids)
    if "decoder_input_ids" in names:
        text["decoder_input_ids"] = ids[:, :7]
    if "bbox" in names:
        text["bbox"] = torch.zeros(ROWS, LENGTH, 4, dtype=torch.long)
    images = [(ROWS, channels, size, size), (ROWS, 4, channels, size, size), (ROWS, 1, channels, size, size)]
    sounds = [(ROWS, bins, frames), (ROWS, frames, bins), (ROWS, 1, frames, bins), (ROWS, frames)]
    offered: dict[str, list[tuple[int, ...]]] = {
        "pixel_values": images,
        "pixel_values_videos": images[1:],
        "input_features": sounds,
        "input_values": [(ROWS, 4000), *sounds, (ROWS, 1, 4000)],
        "past_values": [(ROWS, 64), (ROWS, 64, 1)],
        "inputs_embeds": [(ROWS, LENGTH, hidden)],
        "hidden_states": [(ROWS, LENGTH, hidden)],
    }
    if text:
        yield text
        yield {name: value for name, value in text.items() if name != "decoder_input_ids"}
        yield {"input_ids": ids[:1].expand(ROWS, 2, LENGTH)}  # two choices of each
        yield {"input_ids": ids[:1].expand(ROWS * 4, LENGTH)}  # four codebooks
    for name, shapes in offered.items():
        if name in names:
            for shape in shapes:
                yield {**text, name: torch.randn(shape)}
    if "grid_thw" in names or "image_grid_thw" in names:
        patch = getattr(config, "patch_size", 14)
        width = 3 * patch * patch * getattr(config, "temporal_patch_size", 2)
        first = next(iter(names))
        yield {first: torch.randn(16, width), "grid_thw": torch.tensor([[1, 4, 4]])}


def fed(kind: Any) -> tuple[Any, Inputs]:
    """A small model of the class, and something that it takes.

    Raises:
        Exception: the first of those that it raised, where it takes nothing of what is offered.
    """
    import torch

    errors: list[Exception] = []
    for sizes in CHOICES:
        try:
            model = made(kind, sizes).eval()
        except Exception as error:
            errors.append(error)
            continue
        for inputs in feeds(model):
            try:
                torch.manual_seed(0)
                value(model(**inputs)).backward()
                return model, inputs
            except Exception as error:
                errors.append(error)
    raise errors[0]


# --- the modes -------------------------------------------------------------------------------------


def value(outputs: Any) -> Any:
    """A number that depends on everything the model puts out, but for what it also keeps."""
    import torch

    named = outputs.items() if hasattr(outputs, "items") else enumerate(_flat(outputs))
    total = None
    for name, part in named:
        for tensor in () if name in CACHES else _flat(part):
            if torch.is_floating_point(tensor) and tensor.requires_grad:
                weight = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1))
                term = (tensor.float() * weight).sum() / tensor.numel() ** 0.5
                total = term if total is None else total + term
    if total is None:
        raise ValueError("nothing that it puts out requires grad")
    return total


def _flat(part: Any) -> list[Any]:
    import torch

    if isinstance(part, torch.Tensor):
        return [part]
    return [tensor for each in part for tensor in _flat(each)] if isinstance(part, (list, tuple)) else []


def gradients(model: Any, inputs: Inputs, mode: str, seed: int = 0) -> dict[str, Any]:
    """The value and the gradients of one forward and backward in ``mode``."""
    import torch

    model.zero_grad(set_to_none=True)
    model.train(mode != "evaluation")
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.eval()
    if mode in ("nonreentrant", "reentrant"):
        model.gradient_checkpointing_enable({"use_reentrant": mode == "reentrant"})
    torch.manual_seed(seed)
    result = value(model(**inputs))
    result.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    if mode in ("nonreentrant", "reentrant"):
        model.gradient_checkpointing_disable()
    return {"": result.detach().reshape(1), **found}


def verdict(got: dict[str, Any], right: dict[str, Any]) -> str:
    """``=``, or how far ``got`` is from ``right``."""
    largest = max(float(tensor.norm()) for tensor in right.values())
    if not largest < float("inf"):
        return "not finite in evaluation mode"
    seen = {name: tensor for name, tensor in right.items() if float(tensor.norm()) > 1e-6 * largest}
    if missing := [name for name in seen if name not in got]:
        return f"{len(missing)} without a gradient"
    off = max(float((got[name] - right[name]).norm() / tensor.norm()) for name, tensor in seen.items())
    return "=" if off <= TOLERANCE else f"{off:.0e} off"


def judged(kind: Any) -> dict[str, str]:
    """Of each mode: ``=``, how far it is off, or the error it ends in; or why nothing was run."""
    try:
        model, inputs = fed(kind)
        right = gradients(model, inputs, "evaluation")
        if verdict(gradients(model, inputs, "evaluation"), right) != "=":
            return {"not made": "evaluation mode is no function: two runs differ"}
    except Exception as error:
        return {"not made": _said(error)}
    found = {"off": _judged(model, inputs, "off", right)}
    if found["off"] != "=" and _draws(model, inputs):
        found["off"], right = CHANCE, gradients(model, inputs, "off")
    return found | {mode: _judged(model, inputs, mode, right) for mode in MODES if mode != "off"}


def _judged(model: Any, inputs: Inputs, mode: str, right: dict[str, Any]) -> str:
    try:
        return verdict(gradients(model, inputs, mode), right)
    except Exception as error:
        return f"`{_said(error)}`"


def _draws(model: Any, inputs: Inputs) -> bool:
    """Whether training without checkpointing is another one with another seed, and the same with the same."""
    try:
        once, again, other = (gradients(model, inputs, "off", seed) for seed in (0, 0, 1))
    except Exception:
        return False
    return verdict(again, once) == "=" != verdict(other, once)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:110]


def _judge(kind: Any, out: Path, rank: int, port: int) -> None:
    import torch

    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR, PROCESSOR))
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = out.with_suffix(".log").open("w")
    out.write_text(json.dumps(judged(kind)))


def lines_of(path: Path) -> list[dict[str, str]]:
    """What is in ``path`` so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.modes")
    parser.add_argument("--out", type=Path, required=True, help="a line of JSON for each class goes here")
    parser.add_argument("--only", default="", help="beginnings of class names, by commas")
    parser.add_argument("--known", type=Path, help="a file of class names to pass over, one a line")
    parser.add_argument("--patched", action="store_true")
    asked = parser.parse_args()
    if asked.patched:
        importlib.import_module("vlmpatch")
    run: Callable[..., list[int | None]] = forks.run
    done = {line["class"] for line in lines_of(asked.out)}
    done |= {*asked.known.read_text().split()} if asked.known else set()
    with asked.out.open("a") as lines:
        for kind in classes([name for name in asked.only.split(",") if name]):
            if kind.__name__ in done:
                continue
            one = asked.out.with_name(f"{kind.__name__}.json")
            (code,) = run(_judge, kind, one, world=1, port=0, limit=LIMIT)
            found = json.loads(one.read_text()) if code == 0 else {"not made": f"ended with {code}"}
            found["module"] = kind.__module__.split(".")[2]
            print(json.dumps({"class": kind.__name__, **found}), file=lines, flush=True)


if __name__ == "__main__":
    main()
