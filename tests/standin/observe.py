"""Runs the fine-tune script, unchanged, many times after one import of the stack, and records what it does.

    python -m tests.standin.observe --folder DIR --out DIR CELLS.json

Each cell forks two ranks. A rank sets what ``torchrun`` would have set and runs ``finetune.py`` as
``__main__``; gradients are read where the optimizer is about to use them, parameters after training.
One JSON line a cell goes to standard output. vlmpatch is imported before anything else; what a cell is to
do without, its ranks take back.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import importlib
import json
import os
import re
import runpy
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.standin.cells import Cell
from vlmpatch_lab import forks
from vlmpatch_lab.ports import free_port

WORLD = 2
LIMIT = 120.0
KWARGS_LINE = 'training_args.gradient_checkpointing_kwargs={"use_reentrant":False}'
KWARGS = {
    "own": KWARGS_LINE,
    "none": "",
    "reentrant": KWARGS_LINE.replace("False", "True"),
}
INPUT_GRADS = "model.enable_input_require_grads(); "
TUNING = {
    "lora_vision": {"use_lora": "true", "tune_llm": "false", "tune_vision": "true"},
    "lora": {"use_lora": "true", "tune_llm": "false", "tune_vision": "false"},
    "full": {"use_lora": "false", "tune_llm": "true", "tune_vision": "true"},
    "llm_frozen": {"use_lora": "false", "tune_llm": "false", "tune_vision": "true"},
}


def command_line(cell: Cell, folder: Path, output: Path) -> list[str]:
    """What finetune_lora.sh and finetune_ds.sh pass, at the size of a test."""
    values: dict[str, Any] = {
        "model_name_or_path": folder / "model",
        "llm_type": "qwen",
        "data_path": folder / f"{cell.data}.json",
        "remove_unused_columns": "false",
        "label_names": "labels",
        "model_max_length": 1024,
        "max_slice_nums": 6,
        "max_steps": cell.steps,
        "output_dir": output,
        "logging_dir": output,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "evaluation_strategy": "no",
        "save_strategy": "no",
        "per_device_train_batch_size": cell.batch,
        "gradient_accumulation_steps": cell.accumulate,
        "learning_rate": 1e-4,
        "weight_decay": 0.1,
        "adam_beta2": 0.95,
        "warmup_ratio": 0.01,
        "lr_scheduler_type": "cosine",
        "max_grad_norm": 0,
        "gradient_checkpointing": "true" if cell.checkpointing else "false",
        "report_to": "none",
        "dataloader_pin_memory": "false",
        **TUNING[cell.tuning],
    }
    if "lora" in cell.tuning:
        values |= {"lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.0}
    if cell.engine == "ddp":
        values |= {"use_cpu": "true", "ddp_backend": "gloo"}
    else:
        values |= {"deepspeed": folder / f"ds_config_{cell.engine}.json"}
    return [f"--{name}={value}" for name, value in values.items() if name not in cell.drop]


def scripts(cell: Cell, folder: Path, work: Path) -> Path:
    """The script's folder, with its one line about checkpointing as the cell wants it."""
    line = (INPUT_GRADS if cell.input_grads else "") + KWARGS[cell.kwargs]
    copy = work / "script"
    shutil.copytree(folder / "finetune", copy, dirs_exist_ok=True)
    path = copy / "finetune.py"
    text = path.read_text()
    if KWARGS_LINE not in text:
        raise RuntimeError(f"{path} has no line {KWARGS_LINE}")
    path.write_text(text.replace(KWARGS_LINE, line))
    return path


def rank_main(cell: Cell, folder: Path, work: Path, rank: int, port: int) -> None:
    descriptor = os.open(work / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(WORLD),
        "LOCAL_WORLD_SIZE": str(WORLD),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    if cell.engine != "ddp":
        os.environ["VLMPATCH_LAB_GLOO"] = "1"
    faulthandler.dump_traceback_later(LIMIT - 5)
    watch = Watch(work / f"rank{rank}.pt")
    report: dict[str, Any] = {"error": ""}
    try:
        if cell.without:
            importlib.import_module("vlmpatch").undo(*cell.without)
        script = work / "script" / "finetune.py"
        sys.path.insert(0, str(script.parent))
        sys.argv = [str(script), *command_line(cell, folder, work / "output")]
        os.chdir(script.parent)
        watch.install(cell)
        runpy.run_path(str(script), run_name="__main__")
        check_heard(cell, watch.trainer.model)
        if rank == 0:
            check_saved(work / "output")
            report["unsaved"] = unsaved(watch.trained, work / "output")
        report |= {"losses": watch.losses, "digest": watch.digest, "untrained": watch.untrained}
        import torch.distributed as dist

        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
    except BaseException as error:
        traceback.print_exc()
        report["error"] = f"{type(error).__name__}: {error}"[:400]
        raise SystemExit(1) from None
    finally:
        report["patches"] = importlib.import_module("vlmpatch_lab.ranks").states()
        (work / f"rank{rank}.json").write_text(json.dumps(report))


def check_heard(cell: Cell, model: Any) -> None:
    """Raise unless what the script said of use_reentrant is what the model's blocks were told."""
    said = {"own": False, "reentrant": True}.get(cell.kwargs)
    if said is None or not cell.checkpointing:
        return
    functions = (getattr(module, "_gradient_checkpointing_func", None) for module in model.modules())
    told = {function.keywords.get("use_reentrant") for function in functions if function is not None}
    if told != {said}:
        raise RuntimeError(f"use_reentrant={said} was not heard: the model was told {told}")


def check_saved(output: Path) -> None:
    """Raise unless the script, which ends by saving, left weights behind."""
    if not any(output.glob("*model*.safetensors")):
        raise RuntimeError("the script saved no weights")


class Watch:
    """Reads gradients before every optimizer step and the parameters after the last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps: list[dict[str, Any]] = []
        self.losses: list[float] = []
        self.untrained: list[str] = []
        self.trained: dict[str, str] = {}  # the hash of each trainable parameter after the last step
        self.digest = ""
        self.trainer: Any = None

    def install(self, cell: Cell) -> None:
        import deepspeed
        import peft
        import transformers

        from vlmpatch_lab.collectives import wait_for_every_collective

        if cell.engine == "zero3":
            wait_for_every_collective()
        _fill_uninitialised_memory(transformers)
        # B is zero at first, which would make every gradient of A zero.
        _set_lora_start(peft)
        engine_class = deepspeed.DeepSpeedEngine
        step, train = engine_class.step, transformers.Trainer.train

        def step_and_look(engine: Any, *args: Any, **kwargs: Any) -> Any:
            if engine.is_gradient_accumulation_boundary():
                self.look(deepspeed.utils.safe_get_full_grad)
            return step(engine, *args, **kwargs)

        def train_and_look(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            self.trainer = trainer
            result = train(trainer, *args, **kwargs)
            self.finish()
            return result

        engine_class.step = step_and_look
        transformers.Trainer.train = train_and_look
        if cell.engine == "ddp":
            from torch.optim.optimizer import register_optimizer_step_pre_hook

            register_optimizer_step_pre_hook(lambda *_: self.look(lambda parameter: parameter.grad))

    def look(self, gradient: Any) -> None:
        found = {}
        for name, parameter in self.trainer.model.named_parameters():
            if parameter.requires_grad and (value := gradient(parameter)) is not None:
                found[name] = value.detach().float().clone()
        self.steps.append(found)

    def finish(self) -> None:
        import deepspeed
        import torch

        torch.save(self.steps[0], self.path)
        torch.save(self.steps, self.path.with_suffix(".all"))
        self.losses = [row["loss"] for row in self.trainer.state.log_history if "loss" in row]
        for name, parameter in self.trainer.model.named_parameters():
            if not parameter.requires_grad:
                continue
            if not any(name in step and step[name].any() for step in self.steps):
                self.untrained.append(name)
            with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
                self.trained[name] = _hash(parameter.detach())
        self.digest = hashlib.sha256(json.dumps(self.trained).encode()).hexdigest()[:16]


def unsaved(trained: dict[str, str], output: Path) -> list[str]:
    """The trained parameters that no file of the saved model holds."""
    from safetensors.torch import load_file

    saved = {_hash(value) for path in output.glob("*.safetensors") for value in load_file(path).values()}
    return sorted(name for name, content in trained.items() if content not in saved)


def _hash(value: Any) -> str:
    return hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()[:16]


def _fill_uninitialised_memory(transformers: Any) -> None:
    """While a model is loaded: what nobody fills must not hold a right value left there by luck."""
    import torch

    load = transformers.PreTrainedModel.from_pretrained.__func__

    def load_and_fill(cls: Any, *args: Any, **kwargs: Any) -> Any:
        torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty() then fills with NaN
        try:
            return load(cls, *args, **kwargs)
        finally:
            torch.use_deterministic_algorithms(False)

    transformers.PreTrainedModel.from_pretrained = classmethod(load_and_fill)


def _set_lora_start(peft: Any) -> None:
    import torch

    start, add = peft.LoraConfig.__init__, peft.get_peft_model

    def begin(config: Any, *args: Any, **kwargs: Any) -> None:
        start(config, *args, **{"init_lora_weights": False, **kwargs})

    def seeded(*args: Any, **kwargs: Any) -> Any:
        torch.manual_seed(1)  # engines draw differently until here
        return add(*args, **kwargs)

    peft.LoraConfig.__init__, peft.get_peft_model = begin, seeded


def run_cell(cell: Cell, folder: Path, out: Path) -> dict[str, Any]:
    work = out / cell.id
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    scripts(cell, folder, work)
    started = time.monotonic()
    codes = forks.run(rank_main, cell, folder, work, world=WORLD, port=free_port(), limit=LIMIT, grace=8)
    reports = [_read(work / f"rank{rank}.json") for rank in range(WORLD)]
    result: dict[str, Any] = {"cell": cell.id, "rc": codes, "seconds": round(time.monotonic() - started, 1)}
    result["errors"] = [report.get("error", "no report: killed or hung") for report in reports]
    result["patches"] = reports[0].get("patches", {})
    result["logs"] = [str(work / f"rank{rank}.log") for rank in range(WORLD)]
    result["warnings"] = warnings((work / "rank0.log").read_text(errors="replace"))
    if codes == [0, 0]:
        result |= judge(reports, work, out / cell.reference.id)
    return result


def warnings(log: str) -> dict[str, list[str]]:
    """What vlmpatch said, by patch."""
    said: dict[str, list[str]] = {}
    for patch, words in re.findall(r"vlmpatch \[([\w-]+)\]: (.*)", log):
        said.setdefault(patch, []).append(words)
    return said


def judge(reports: list[dict[str, Any]], work: Path, reference: Path) -> dict[str, Any]:
    from vlmpatch_lab import compare

    digests = {report["digest"] for report in reports}
    found: dict[str, Any] = {
        "same_parameters": len(digests) == 1,
        "untrained": sorted({name for report in reports for name in report["untrained"]}),
        "unsaved": reports[0]["unsaved"],
        "losses": reports[0]["losses"],
    }
    right = reference if (reference / "rank1.pt").exists() else None
    found |= compare.folders(work, right)
    if right is not None:
        found["difference"] = max(_differences(work, right))
    return found


def _differences(work: Path, reference: Path) -> list[float]:
    """The largest relative difference of each rank's gradients in each step."""
    import torch

    from vlmpatch_lab import compare

    worst = []
    for got in sorted(work.glob("rank*.all")):
        pairs = zip(torch.load(got), torch.load(reference / got.name), strict=True)
        worst += [compare.difference(mine, theirs)[0] for mine, theirs in pairs]
    return worst


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cells", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    import vlmpatch  # noqa: F401

    vars(importlib.import_module("vlmpatch.patches._shared.rendezvous"))["LOOK"] = 1.0
    # What every cell's script imports, once before the forks: as in a notebook that trained before. The
    # launched tests run the script in a process of its own.
    import peft  # noqa: F401
    import transformers.models.qwen2.modeling_qwen2
    import transformers.trainer  # noqa: F401

    from vlmpatch_lab import engines, loading

    engines.preload_engine()
    loading.preload_models()
    for row in json.loads(options.cells.read_text()):
        result = run_cell(Cell.of(row), options.folder.resolve(), options.out.resolve())
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
