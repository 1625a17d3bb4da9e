"""What holds bare holds with us, on every image-and-text family that can be made small here.

    python -m tests.lab.families tf457-ds0182 [--only aria,mllama] [--out FOLDER]

makes a tiny model of each family that transformers lists as image-text-to-text, from its own
configuration, and trains it for two steps by LoRA under ZeRO-3: bare with checkpointing off and on, and with
vlmpatch and checkpointing on. What is right is the same samples in one process without an engine. The result
goes into ``data/families.csv``, from which ``make generate`` writes ``docs/reference/families.md``.

    python -m tests.lab.families --make FOLDER [--only …]

is the part of it that runs inside the stack: the checkpoints, and ``made.json`` with what became of each.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import json
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.lab import cells, envs, launch, pages, table
from tests.lab.cells import Result
from tests.lab.zoo import IMAGE, TEXT, VISION, ZOO, write
from vlmpatch_lab.cell import Cell

STORE = pages.ROOT / "data" / "families.csv"
BEGIN = "<!-- written by tests.lab.families -->"
RUNS = ("bare off", "bare default", "patched default")  # and how checkpointing was
COLUMNS = ("stack", "family", *RUNS, "not made")
SIZE, PATCH = 56, 14
LARGEST = 20_000_000  # parameters of a model that is still small
Found = dict[str, dict[str, dict[str, str]]]  # by stack and family: of each run, or why it was not made

# --- inside the stack: a small model of each family ---------------------------------------------------

# Every name that a configuration has for what makes a model large; each takes those it knows.
LANGUAGE: dict[str, Any] = {
    **TEXT,
    "head_dim": 16,
    "attention_head_dim": 16,
    "num_layers": 2,
    "d_model": 64,
    "d_ff": 128,
    "ffn_dim": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "moe_num_shared_experts": 1,
    "intermediate_size_mlp": 64,
    "sliding_window": 16,
    "layer_types": ["full_attention"] * 2,
    "mlp_layer_types": ["dense"] * 2,
    "rope_scaling": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
TOWER: dict[str, Any] = {
    **VISION,
    "depth": 2,
    "embed_dim": 32,
    "num_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "mlp_dim": 64,
    "mlp_ratio": 2,
    "image_size": SIZE,
    "img_size": SIZE,
    "patch_size": PATCH,
    "out_hidden_size": 64,
    "output_dim": 64,
    "projection_dim": 64,
    "layer_types": ["full_attention"] * 2,
}
DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "dropout")
BRIDGE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TOP = {
    "hidden_size": 64,
    "projection_dim": 64,
    "num_query_tokens": 4,
    "vision_feature_layer": -1,
    "image_seq_length": 4,
    "mm_tokens_per_image": 4,
}
# What a family wants besides, of its language model, its tower or at the top.
GLM_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
MORE: dict[str, dict[str, dict[str, Any]]] = {
    "aria": {"top": {"projector_patch_to_query_dict": {16: 4}}},
    "glm46v": {"text": GLM_ROPE},
    "glmga": {"text": GLM_ROPE},
    "glm_ocr": {"text": GLM_ROPE},
    "llama4": {
        "vision": {
            "intermediate_size": 128,
            "projector_input_dim": 64,
            "projector_output_dim": 64,
            "vision_output_dim": 64,
        }
    },
    "vipllava": {"top": {"vision_feature_layers": [-1, -2]}},
}
SAME = {"qwen2_5_omni_thinker": "qwen2_5_omni"}  # by another name in the zoo
IMAGE_TOKENS = ("image_token_id", "image_token_index", "image_soft_token_id")
MROPE = {"mrope_section": [2, 3, 3]}


def small(model_type: str) -> Any:
    """The configuration of a family, with every part of it made small."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind, more = CONFIG_MAPPING[model_type], MORE.get(model_type, {})
    default = kind()
    parts = {}
    for name, value in vars(default).items():
        if name.endswith("_config") and hasattr(value, "to_dict"):
            sizes = LANGUAGE if "text" in name or "llm" in name else BRIDGE if "qformer" in name else TOWER
            parts[name] = shrunk(value, sizes).to_dict() | more.get(name.removesuffix("_config"), {})
    if not parts:
        return shrunk(default, LANGUAGE)
    top = TOP | dict.fromkeys(IMAGE_TOKENS, IMAGE)
    return kind(**known(default, top), **more.get("top", {}), **parts)


def shrunk(config: Any, sizes: dict[str, Any]) -> Any:
    return type(config)(**known(config, sizes))


def known(config: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    """Those of ``sizes`` that ``config`` has, each of the type that it has there."""
    found = {}
    for name, value in {**sizes, **dict.fromkeys(DROPOUT, 0.0)}.items():
        try:
            own = getattr(config, name)
        except Exception:  # not there, or one for each layer, which says so with an error of its own
            continue
        if name.startswith("rope_"):
            found[name] = rope(own or {}, value)
        elif not isinstance(own, (list, tuple)) or isinstance(value, list):
            found[name] = float(value) if isinstance(own, float) else value
    return found


def rope(own: dict[str, Any], value: Any) -> Any:
    """A plain rotary embedding, said as this configuration says it."""
    if own and all(isinstance(part, dict) for part in own.values()):
        return {name: rope(part, value) for name, part in own.items()}
    if "mrope_section" in own:
        more = {name: own[name] for name in ("mrope_interleaved", "partial_rotary_factor") if name in own}
        return {**(value or {}), "rope_type": "default", **MROPE, **more}
    theta = {name: own[name] for name in ("rope_theta",) if name in own}
    return {"rope_type": "default", **theta} if own else value


def make(model_type: str, class_name: str, folder: Path) -> int:
    import torch
    import transformers
    from accelerate import init_empty_weights

    config = small(model_type)
    kind = getattr(transformers, class_name)
    with init_empty_weights():
        count = sum(parameter.numel() for parameter in kind(copy.deepcopy(config)).parameters())
    if count > LARGEST:
        raise ValueError(f"{count:,} parameters are left")
    torch.manual_seed(0)
    model = kind(config)
    errors: list[Exception] = []
    for pixels in candidates(model):
        try:
            with torch.no_grad():
                pieces = tokens_of(model, pixels())
            size = write(model, folder, pixels, pieces, types=types_of(model))
            check(model, torch.load(folder / "batches.pt")[0])
            return size
        except Exception as error:
            errors.append(error)
    raise errors[0]


def check(model: Any, batch: dict[str, Any]) -> None:
    """One forward and backward must work by itself, and must reach the tower."""
    import torch

    loss = model.train()(**batch).loss
    loss.backward()
    if not torch.isfinite(loss):
        raise ValueError(f"its loss is {loss.item()}")
    if not any(p.grad is not None for n, p in model.named_parameters() if "vision" in n or "visual" in n):
        raise ValueError("no gradient reaches its vision tower")


def types_of(model: Any) -> str:
    names = inspect.signature(model.forward).parameters
    return next((name for name in ("mm_token_type_ids", "token_type_ids") if name in names), "")


def tokens_of(model: Any, images: dict[str, Any]) -> int:
    """Of how many tokens the image is, from the features that the model makes of it."""
    import torch

    function = features_of(model)
    names = inspect.signature(function).parameters
    given = {name: value for name, value in images.items() if name in names}
    for name, value in (("vision_feature_layer", -1), ("vision_feature_select_strategy", "default")):
        if name in names:
            given[name] = getattr(model.config, name, value)
    try:
        found = function(**given)
    except TypeError:  # its signature says more than it takes
        found = function(**{name: value for name, value in given.items() if name in images})
    found = getattr(found, "pooler_output", found)
    parts = [found] if isinstance(found, torch.Tensor) else [part for part in found if part is not None]
    while not isinstance(parts[0], torch.Tensor):
        parts = [*parts[0]]
    if any(part.shape[1:] != parts[0].shape[1:] for part in parts):
        parts = parts[:1]  # what comes beside the features
    return sum(int(part.numel() // part.shape[-1]) for part in parts)


def features_of(model: Any) -> Callable[..., Any]:
    owner = model if hasattr(model, "get_image_features") else model.model
    function: Callable[..., Any] = owner.get_image_features
    return function


def candidates(model: Any) -> Iterator[Callable[[], dict[str, Any]]]:
    """Ways in which a model may want its images, the most telling of its forward first."""
    import torch

    asked = {*inspect.signature(model.forward).parameters, *inspect.signature(features_of(model)).parameters}
    size, patch = SIZE, PATCH

    def plain() -> dict[str, Any]:
        return {"pixel_values": torch.randn(1, 3, size, size)}

    def sized() -> dict[str, Any]:
        return {**plain(), "image_sizes": torch.tensor([[size, size]])}

    def tiles() -> dict[str, Any]:
        return {
            "pixel_values": torch.randn(1, 2, 3, size, size),
            "image_sizes": torch.tensor([[size, size]]),
        }

    def padded() -> dict[str, Any]:
        mask = torch.ones(1, 1, size, size, dtype=torch.bool)
        return {"pixel_values": torch.randn(1, 1, 3, size, size), "pixel_attention_mask": mask}

    def one_tile() -> dict[str, Any]:
        return {"pixel_values": torch.randn(1, 1, 3, size, size)}

    def twice() -> dict[str, Any]:
        return {**plain(), "high_res_pixel_values": torch.randn(1, 3, size, size)}

    def packed() -> dict[str, Any]:
        return {"pixel_values": torch.randn(1, 3, patch, patch * 64), "target_sizes": torch.tensor([[8, 8]])}

    def shaped() -> dict[str, Any]:
        mask = torch.ones(1, 16, dtype=torch.long)
        flat = torch.randn(1, 16, 3 * patch * patch)
        return {"pixel_values": flat, "spatial_shapes": torch.tensor([[4, 4]]), "pixel_attention_mask": mask}

    def patches(temporal: int) -> Callable[[], dict[str, Any]]:
        def made() -> dict[str, Any]:
            length = 3 * temporal * patch * patch
            return {"pixel_values": torch.randn(16, length), "image_grid_thw": torch.tensor([[1, 4, 4]])}

        return made

    if "image_grid_thw" in asked:
        yield from (patches(2), patches(1))
    if "target_sizes" in asked:
        yield packed
    if "spatial_shapes" in asked:
        yield shaped
    elif "pixel_attention_mask" in asked:
        yield padded
    if "high_res_pixel_values" in asked:
        yield twice
    if "image_sizes" in asked:
        yield from (tiles, sized)
    yield from (plain, one_tile)


def families() -> dict[str, str]:
    """The model types that transformers lists as image-text-to-text, and the class of each."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    return dict(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)


def make_all(out: Path, only: list[str]) -> None:
    from tests.lab.tiny import KINDS, build
    from vlmpatch_lab.models import add_vocabulary

    known_here = ZOO | {kind: partial(build, about) for kind, about in KINDS.items()}
    made = {}
    for model_type, class_name in families().items():
        kind = model_type.replace("-", "_")
        if only and kind not in only:
            continue
        folder = out / kind
        try:
            if (made_by := known_here.get(SAME.get(kind, kind))) is not None:
                made_by(folder)
            else:
                make(model_type, class_name, folder)
            add_vocabulary(folder / "config.json")
            made[kind] = ""
        except Exception as error:
            made[kind] = f"{type(error).__name__}: {error}"
            (out / f"{kind}.txt").write_text(traceback.format_exc())
        print(f"{kind}: {made[kind][:150] or 'made'}", flush=True)
    (out / "made.json").write_text(json.dumps(made))


# --- outside: train each, bare and with vlmpatch, and say what became of it ---------------------------


def verdict(result: Result) -> str:
    """``=`` where it is right, or what it is instead."""
    if not result.ok:
        return f"`{' '.join((result.error or '').split())[:60]}`"
    if result.missing:
        return f"{len(result.missing)} without a gradient"
    return "=" if cells.is_equal(result) else f"{result.difference:.0e} off"


def holds(about: dict[str, str]) -> bool:
    """What is right bare, with checkpointing or without, has to be right with vlmpatch and checkpointing."""
    bare = any(about.get(run) == "=" for run in RUNS[:2])
    return not bare or about.get(RUNS[2]) == "="


def perform(stack_name: str, only: list[str], out: Path) -> dict[str, dict[str, str]]:
    """Of each family, by engine and checkpointing, bare and patched; or why it could not be made."""
    stack = envs.read_stacks()[stack_name]
    envs.make(stack)
    made = made_in(stack, only, out / "models")
    models = {kind: out / "models" / kind for kind, why in made.items() if not why}
    off, on = (
        [Cell(kind, "zero3", "lora", compared=2, checkpointing=how) for kind in models]
        for how in ("off", "default")
    )
    measures, right = [cell.reference for cell in off], out / "bare"
    bare = cells.run(stack, [*measures, *off, *on], right, models=models)
    patched = cells.run(stack, on, out / "patched", patched=True, reference=right, models=models)
    found = {}
    for without, cell in zip(off, on, strict=True):
        results = (bare[without.id], bare[cell.id], patched[cell.id])
        found[cell.kind] = dict(zip(RUNS, map(verdict, results), strict=True))
        for run, result in zip(RUNS, results, strict=True):
            print(f"{run:16}{result}")
    return found | {kind: {"not made": why} for kind, why in made.items() if why}


def made_in(stack: envs.Stack, only: list[str], folder: Path) -> dict[str, str]:
    """Make them inside the stack: of each why it could not be made, or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = ["python", "-m", "tests.lab.families", "--make", folder]
    command += ["--only", ",".join(only)] if only else []
    finished = launch.run(stack, command, limit=900)
    if not (folder / "made.json").exists():
        raise RuntimeError(str(finished))
    found: dict[str, str] = json.loads((folder / "made.json").read_text())
    return found


def read(path: Path = STORE) -> Found:
    """What was run, by stack and family.

    Raises:
        table.Broken: the file is not whole.
    """
    found: Found = {}
    for _, line in table.read(path, COLUMNS, "python -m tests.lab.families STACK"):
        stack, family, not_made = line.pop("stack"), line.pop("family"), line.pop("not made")
        found.setdefault(stack, {})[family] = {"not made": not_made} if not_made else line
    return found


def save(found: Found, path: Path = STORE) -> None:
    lines = [
        (stack, family, *(about.get(name, "") for name in COLUMNS[2:]))
        for stack, kinds in sorted(found.items())
        for family, about in sorted(kinds.items())
    ]
    table.write(path, COLUMNS, lines)


def shown(found: Found, words: dict[str, str]) -> str:
    lines = []
    for stack, kinds in sorted(found.items()):
        ran = {kind: about for kind, about in sorted(kinds.items()) if "not made" not in about}
        lost = sorted(kind for kind, about in kinds.items() if "not made" in about)
        lines += [f"### {stack}", "", "| |" + "".join(f" {words[run]} |" for run in RUNS)]
        lines += ["|---" * (len(RUNS) + 1) + "|"]
        lines += [
            f"| {kind} | " + " | ".join(about.get(run, "") for run in RUNS) + " |"
            for kind, about in ran.items()
        ]
        lines += ["", words["lost"].format(", ".join(f"`{kind}`" for kind in lost)), ""] if lost else [""]
    return "\n".join(lines).rstrip()


def page(language: str) -> Path:
    """The page with the table."""
    return pages.reference(language, "families")


def filled(language: str) -> str:
    """The page as the record has it."""
    return pages.filled(page(language).read_text("utf-8"), BEGIN, shown(read(), WORDS[language]))


WORDS = {
    "en": {
        "bare off": "bare, checkpointing off",
        "bare default": "bare, checkpointing on",
        "patched default": "vlmpatch, checkpointing on",
        "lost": "No small model of these could be made from their configurations: {}.",
    },
    "zh": {
        "bare off": "无补丁,不开检查点",
        "bare default": "无补丁,开检查点",
        "patched default": "vlmpatch,开检查点",
        "lost": "以下家族未能由其配置做出小模型:{}。",
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.families")
    parser.add_argument("stack", nargs="?", choices=envs.read_stacks())
    parser.add_argument("--only", default="", help="families, by commas")
    parser.add_argument("--make", type=Path, metavar="FOLDER", help="inside a stack: make them")
    parser.add_argument("--out", type=Path, help="keep checkpoints, logs and gradients here")
    asked = parser.parse_args()
    only = [kind for kind in asked.only.split(",") if kind]
    if asked.make:
        make_all(asked.make, only)
        return
    if not asked.stack:
        parser.error("which stack?")
    out = asked.out or Path(tempfile.mkdtemp(prefix="families-"))
    ran = perform(asked.stack, only, out)
    found = read()
    found[asked.stack] = found.get(asked.stack, {}) | ran
    save(found)


if __name__ == "__main__":
    main()
