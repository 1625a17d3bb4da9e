"""HF Trainer with arguments drawn at random: what it logs and learns, bare and with vlmpatch.

    python -m tests.e2e.drawn_trainer tf457-ds0182 --kinds qwen2_vl,llava --count 40 --seed 0

What is right is the same Trainer under DDP that searches for unused parameters, without checkpointing and
without vlmpatch, but for F15 and F110: all losses, norms, evaluations and the parameters at the end. Every
training that vlmpatch harms or leaves wrong is printed, then how many ended how; exit status 1 where it
harmed one. A seed draws the same again, of the same ``--engines``. ``tests.e2e.drawn`` draws trainings that
call an engine themselves.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.e2e import drawing
from tests.e2e.drawing import ARGUMENTS, CHANCE, CHECKPOINTING, Ended, Told, some
from tests.lab import envs, forked
from tests.lab.forked import Job

SCRIPT = "tests/programs/train_drawn.py"
IMPORTS = (*forked.STACK, "deepspeed", "accelerate")
LAYERS = {  # of the language model: where these alone are wrapped, the tower stays with the whole
    "qwen2_vl": "Qwen2VLDecoderLayer",
    "qwen2_5_vl": "Qwen2_5_VLDecoderLayer",
    "llava": "LlamaDecoderLayer",
    "gemma3": "Gemma3DecoderLayer",
    "qwen3_vl": "Qwen3VLTextDecoderLayer",
    "qwen3_vl_moe": "Qwen3VLMoeTextDecoderLayer",
    "internvl": "Qwen2DecoderLayer",
    "llava_onevision": "Qwen2DecoderLayer",
    "llava_next": "LlamaDecoderLayer",
    "idefics3": "LlamaDecoderLayer",
    "smolvlm": "LlamaDecoderLayer",
    "glm4v": "Glm4vTextDecoderLayer",
    "paligemma": "GemmaDecoderLayer",
}
KINDS = "qwen2_vl,qwen2_5_vl,llava,gemma3"
ENGINES = ("ddp", "ddp", "ddp_unused", "zero1", "zero2", "zero2", "zero3", "zero3", "zero3", "fsdp1", "fsdp2")
TUNINGS = ("full", "full", "lora", "lora", "lora_llm", "lora_saved")
EVALUATION: drawing.Words = {
    "prediction_loss_only": (True,),
    "eval_on_start": (True,),
    "eval_accumulation_steps": (1,),
    "eval_steps": (2,),
}
FEW: drawing.Words = {  # each seldom: together they would say the most of every training
    "include_num_input_tokens_seen": (True, "non_padding"),
    "lr_scheduler_type": ("cosine_with_restarts", "inverse_sqrt", "polynomial"),
    "logging_first_step": (True,),
    "dataloader_num_workers": (1,),
    "data_seed": (3,),
    "torch_compile_backend": ("aot_eager",),
}
SELDOM = 0.1
EVALUATION_SELDOM: drawing.Words = {
    "eval_use_gather_object": (True,),
    "eval_do_concat_batches": (False,),
    "eval_delay": (1,),
    "include_for_metrics": (["loss"],),
    "lr_scheduler_type": ("reduce_lr_on_plateau",),
    "eval_strategy": ("epoch",),
}
FSDP: dict[str, drawing.Words] = {
    "fsdp1": {
        "activation_checkpointing": (True,),
        "limit_all_gathers": (True,),
        "forward_prefetch": (True,),
        "backward_prefetch": ("backward_pre", "backward_post"),
        "use_orig_params": (False,),
    },
    "fsdp2": {"activation_checkpointing": (True,), "reshard_after_forward": (False,)},
}
RESUMED_SHARDED = {"state_dict_type": "FULL_STATE_DICT"}
OUT_OF_MEMORY = {"auto_find_batch_size": True, "per_device_train_batch_size": 2}
DDP: drawing.Words = {  # what accelerate is told of it, in a subclass of the Trainer
    "comm_hook": ("fp16", "power_sgd", "batched_power_sgd"),  # in bf16 it asks for NCCL
    "comm_wrapper": ("fp16",),
    "gradient_as_bucket_view": (True,),
    "broadcast_buffers": (False,),
    "static_graph": (True,),
    "bucket_cap_mb": (0.01,),  # several buckets, of a model this small
}
# A rank as high as any matrix: what is left of a gradient would be by which others lie in its bucket. The
# first steps of DDP are another layout, and the columns of a gradient of zeros no directions.
COMPRESSED = {
    **{"start_powerSGD_iter": 2, "matrix_approximation_rank": 64, "min_compression_rate": 1e-3},
    **{"orthogonalization_epsilon": 1e-8},
}
LOADER: drawing.Words = {  # of accelerate's
    "gradient_accumulation_kwargs": ({"sync_each_batch": True},),
    "split_batches": (True,),
    "dispatch_batches": (False,),
    "use_seedable_sampler": (False,),
}
ROWS_OF = ("split_batches", "use_seedable_sampler")  # of these, what says which rows a rank sees
EACH_READS = {"dispatch_batches": False}
SAMPLING: drawing.Words = {  # in transformers 4, and since
    "group_by_length": (True,),
    "train_sampling_strategy": ("group_by_length", "sequential"),
}
SCENARIOS = ("", "", "", "", "frozen", "projector", "biases")
TRAINERS = (
    "",
    "",
    "",
    "",
    "",
    "",
    "loss",
    "loss",
    "step",
    "step",
    "groups",
    "groups",
    "memory",
    "late_memory",
)
ACTS = (
    *(("train",),) * 5,
    *(("evaluate", "train"), ("train", "evaluate"), ("train", "predict"), ("train", "train")),
    *(("train", "resume"),) * 2,
)
FACTORED = ("ddp", "ddp_unused", "fsdp2")  # where Adafactor finds a weight in the shape that it has
REFUSE_EVALUATION = ("zero1", "zero2", "fsdp2")  # before a training
LOGITS_ALONE = ("qwen2_vl", "qwen2_5_vl")  # others return more beside images: what ranks gather differs
NOT_ALL_USED = ("llava", "llava_next")  # the end of their towers, which DDP has to be told
RETRIED = ("auto_find_batch_size", "per_device_train_batch_size")  # where a batch that was too large failed


def drawn(seed: int, count: int, kinds: Sequence[str], engines: Sequence[str] = ENGINES) -> list[Told]:
    """What ``count`` trainings are told."""
    chance = random.Random(seed)
    return [draw(chance, kinds, engines) for _ in range(count)]


def draw(chance: random.Random, kinds: Sequence[str], engines: Sequence[str]) -> Told:
    """What one training is told."""
    engine = chance.choice(engines)
    acts: tuple[str, ...] = chance.choice(ACTS)
    sharded = engine.startswith("fsdp")
    if acts[0] == "evaluate" and engine in REFUSE_EVALUATION:
        acts = ("train",)
    arguments = {**chance.choice(CHECKPOINTING), **some(chance, ARGUMENTS), **some(chance, FEW, SELDOM)}
    arguments |= {"torch_compile": True} if "torch_compile_backend" in arguments else {}
    arguments |= chance.choice(({"max_steps": 4}, {"num_train_epochs": 1}, {"num_train_epochs": 2}))
    arguments["gradient_accumulation_steps"] = chance.choice((1, 1, 2, 3))
    if chance.random() < 0.4:
        arguments |= {"eval_strategy": "steps", "eval_steps": 1, **some(chance, EVALUATION)}
        arguments |= some(chance, EVALUATION_SELDOM, SELDOM)
    if "resume" in acts:
        arguments |= {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
        arguments.pop("eval_on_start", None)  # the one that is resumed does so again
        if arguments.get("eval_strategy") and chance.random() < 0.5:
            arguments |= {"load_best_model_at_end": True, "eval_steps": 2}
    elif arguments.get("eval_strategy") and chance.random() < CHANCE:
        arguments |= {
            "save_strategy": "steps",
            "save_steps": 2,
            "eval_steps": 2,
            "load_best_model_at_end": True,
        }
        arguments["save_only_model"] = engine.startswith("ddp")  # others the Trainer refuses it beside that
    if acts[0] == "evaluate":  # which is not in the measure: noise after it is other noise
        arguments.pop("neftune_noise_alpha", None)
    if acts.count("train") > 1 and engine.startswith("zero"):
        arguments["optim"] = "sgd"  # the Trainer makes a new optimizer there, which knows nothing of before
    if engine == "fsdp1":  # what a unit does not use of its own has a zero, on which weight decay acts
        arguments |= {"optim": "sgd", "weight_decay": 0.0}
    arguments["per_device_train_batch_size"] = chance.choice((1, 1, 2))
    arguments |= some(chance, SAMPLING)
    loader = some(chance, LOADER)
    if "load_best_model_at_end" in arguments:  # saves where it evaluates
        arguments["eval_strategy"] = "steps"
    if arguments["per_device_train_batch_size"] == 1:
        loader.pop("split_batches", None)  # there is nothing to split
    if "split_batches" in loader:
        arguments["per_device_eval_batch_size"] = 2
    if "resume" in acts:
        loader.pop("use_seedable_sampler", None)  # what is left of an epoch is shuffled anew
    # Of a stream nobody knows how long it is, and which rows were seen.
    streamed = chance.random() < 0.15 and "max_steps" in arguments and "resume" not in acts
    ddp = some(chance, DDP) if engine.startswith("ddp") else {}
    if "power" in str(ddp.get("comm_hook")):
        ddp["comm_state_option"] = COMPRESSED
    if engine in FACTORED and chance.random() < 0.05:
        arguments["optim"] = "adafactor"
    callbacks = ["freezing"] if chance.random() < 0.1 and acts == ("train",) and not sharded else []
    if arguments.get("eval_strategy") and chance.random() < CHANCE:
        callbacks.append("evaluating")
    metrics = chance.random() < 0.3
    kind, tuning = chance.choice(kinds), chance.choice(TUNINGS)
    rows = [chance.random() < 0.6 for _ in range(chance.choice((12, 13, 14)))]
    if streamed and len({*rows}) > 1:  # texts and images in one batch, which accelerate refuses to cut
        loader |= EACH_READS
    trainer = chance.choice(TRAINERS)
    if engine == "ddp" and kind in NOT_ALL_USED and tuning == "full":
        engine = "ddp_unused"
    if kind not in LOGITS_ALONE:
        metrics, acts = False, ("train", "evaluate") if "predict" in acts else acts
    fsdp = some(chance, FSDP.get(engine, {}))
    if sharded and chance.random() < 0.5 and kind in LAYERS:
        fsdp["transformer_layer_cls_to_wrap"] = [LAYERS[kind]]
    if arguments.get("gradient_checkpointing"):
        fsdp.pop("activation_checkpointing", None)  # transformers refuses both
    if tuning != "full" or trainer == "groups":
        fsdp.pop("use_orig_params", None)  # what is frozen lies with what is not
    if sharded and "resume" in acts:
        fsdp |= RESUMED_SHARDED
    if metrics:
        arguments.pop("eval_do_concat_batches", None)
    if "memory" in trainer and engine == "zero3":
        trainer = ""  # there the Trainer refuses to look for a size
    if "memory" in trainer:
        acts, callbacks, streamed, rows = ("train",), [], False, [True] * len(rows)
        unwanted = ("eval", "load_best", "save", "neftune", "torch_compile")
        arguments = {name: said for name, said in arguments.items() if not name.startswith(unwanted)}
        arguments |= OUT_OF_MEMORY
        loader = {name: said for name, said in loader.items() if name not in ROWS_OF}
    if trainer == "late_memory":  # hung on what a reentrant block returns in its forward, which has no graph
        arguments = {name: said for name, said in arguments.items() if "checkpointing" not in name}
    if engine == "fsdp1":  # torch ends there, as it says
        arguments = {name: said for name, said in arguments.items() if "compile" not in name}
    if "memory" in trainer or acts[0] == "evaluate":
        for name in SAMPLING:  # with numbers drawn after those of the measure
            arguments.pop(name, None)
    if acts == ("train", "predict") and trainer == "" and chance.random() < 0.5:
        trainer = "generate"
    return {
        "kind": kind,
        "engine": engine,
        "tuning": tuning,
        "scenario": chance.choice(SCENARIOS),
        "input_grads": chance.random() < 0.8,
        "trainer": trainer,
        "metrics": metrics,
        "ignored": None,
        "callbacks": callbacks,
        "acts": acts,
        "arguments": {**arguments, **({"accelerator_config": loader} if loader else {})},
        "ddp": ddp,
        "streamed": streamed,
        "rows": rows,
        "zero": drawing.zero(chance, engine),
        "fsdp": fsdp,
    }


def measure(told: Told) -> Told:
    """The same where it is right: a training that is resumed ends as one that goes through."""
    retried = RETRIED if "auto_find_batch_size" in told["arguments"] else ()
    left_out = {name for name in told["arguments"] if "checkpointing" in name or "compile" in name}
    left_out.update(retried)
    arguments = {name: value for name, value in told["arguments"].items() if name not in left_out}
    trainer = "" if "memory" in told["trainer"] else told["trainer"]
    said = told["acts"][told["acts"].index("train") :]  # evaluated before, ranks may train apart (F114)
    acts = ["again" if act == "resume" else act for act in said]
    if loader := arguments.get("accelerator_config"):
        arguments["accelerator_config"] = {name: value for name, value in loader.items() if name in ROWS_OF}
    if told["streamed"]:  # rows that one rank reads for all are put together, and cut
        arguments["accelerator_config"] = {**arguments.get("accelerator_config", {}), **EACH_READS}
    ddp = {name: value for name, value in told["ddp"].items() if name != "static_graph"}
    plain: Told = {"engine": "ddp_unused", "zero": {}, "fsdp": {}, "trainer": trainer, "ddp": ddp}
    return {**told, **plain, "acts": acts, "arguments": arguments}


def perform(stack: envs.Stack, part: Sequence[Told], models: dict[str, Path], out: Path) -> list[Ended]:
    """How each ended: its measure, bare, and with vlmpatch."""

    def job(name: str, number: int, told: Told) -> Job:
        file = "--keep" if name == "right" else "--right"
        return Job(
            (
                *(SCRIPT, "--model", str(models[told["kind"]]), "--told", json.dumps(told)),
                *("--output_dir", str(out / name / f"saved-{number}")),
                *(file, str(out / f"{number}.pt")),
            )
        )

    def jobs(name: str) -> list[list[Job]]:
        told = map(measure, part) if name == "right" else part
        return [[job(name, number, one)] for number, one in enumerate(told)]

    return drawing.perform(stack, jobs, out, IMPORTS)


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--engines", default=",".join(ENGINES))
    asked, rest = parser.parse_known_args()
    return drawing.main(
        "drawn_trainer",
        __doc__,
        KINDS,
        lambda stack, seed, count, kinds: drawn(seed, count, kinds, asked.engines.split(",")),
        perform,
        rest,
    )


if __name__ == "__main__":
    sys.exit(main())
