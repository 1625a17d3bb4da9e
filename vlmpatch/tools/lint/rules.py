"""What is known to go wrong, rule by rule: each looks at a ``LaunchConfig`` and at the model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from vlmpatch.gate import versions
from vlmpatch.tools.explain.diagnose import printable
from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.data import count
from vlmpatch.tools.lint.launch_config import LaunchConfig, Option
from vlmpatch.tools.view.language import Words


class Model(NamedTuple):
    """What a model's ``config.json`` says that matters here."""

    folder: str
    kind: str
    vision: bool
    experts: bool
    remote: bool


class Around(NamedTuple):
    """What else a rule may ask for.

    Attributes:
        model: the model, if one was given.
        installed: versions, by distribution.
        armed: failures that a patch ends in this environment.
        say: the language.
    """

    model: Model | None
    installed: Mapping[str, str | None]
    armed: frozenset[str]
    say: Words


Rule = Callable[[LaunchConfig, Around], Iterator[Finding]]
REENTRANT = """--gradient_checkpointing_kwargs '{"use_reentrant": false}'"""


def lint(launch: LaunchConfig, around: Around) -> list[Finding]:
    """All findings on ``launch``."""
    found = [finding for rule in RULES for finding in rule(launch, around)]
    for problem in launch.problems:
        found.append(Finding("L00", "warning", around.say("This could not be read."), problem))
    return found


def _severity(around: Around, failure: str) -> str:
    return "note" if failure in around.armed else "warning"


def ended(around: Around, failure: str, fix: str) -> str:
    """``fix``, unless a patch ends ``failure`` here."""
    return (
        around.say("nothing: vlmpatch ends this ({failure})", failure=failure)
        if failure in around.armed
        else fix
    )


def _link(failure: str) -> str:
    return f"python -m vlmpatch explain {failure}"


def explicit_reentrant(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    """use_reentrant=True in so many words."""
    if (given := launch.reentrant) is None:
        return
    failure = {0: "F3", 1: "F1", 2: "F1", 3: "F8"}[launch.stage]
    title = around.say("Reentrant checkpointing is asked for, which fails or trains wrongly here.")
    yield Finding("L01", "warning", title, _quote(given), REENTRANT, _link(failure))


def zero3_lora(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    """ZeRO-3 with frozen parameters and non-reentrant checkpointing before DeepSpeed 0.19.3."""
    lora, checkpointing = launch.lora, launch.checkpointing
    if launch.stage != 3 or lora is None or launch.reentrant or (checkpointing and checkpointing.off):
        return
    if not _nonreentrant(launch, around):
        return
    if not inside(around, "deepspeed", "<0.19.3.dev0") or not inside(around, "torch", ">=2.5.0.dev0"):
        return
    title = around.say("LoRA with checkpointing under ZeRO-3 ends in a CheckpointError.")
    fix = ended(around, "F4", "pip install 'deepspeed>=0.19.3'")
    yield Finding("L02", _severity(around, "F4"), title, _quote(lora), fix, _link("F4"))


def _nonreentrant(launch: LaunchConfig, around: Around) -> bool:
    """Whether this launch would checkpoint without reentrance, as far as it can be told."""
    if launch.swift:
        return False  # under DeepSpeed it is reentrant there, whatever is said
    if launch.nonreentrant or launch.minicpmv:
        return True
    old = around.installed.get("transformers") is not None and inside(around, "transformers", "<5.0.0.dev0")
    return not old and not launch.llamafactory


def slices(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    """More image slices than the tower takes in one call."""
    most, batch = launch.get("max_slice_nums"), launch.get("vision_batch_size")
    size = (batch.number if batch else 16) or 16
    samples = launch.get("per_device_train_batch_size")
    wanted = ((most.number or 0) + 1) * ((samples.number if samples else 1) or 1) if most else 0
    if most is None or wanted <= size:
        return
    failure = {0: "F3", 1: "F1", 2: "F1", 3: "F11"}[launch.stage]
    title = around.say(
        "Up to {wanted} image slices a step, {size} a call: the vision tower is called several times.",
        wanted=wanted,
        size=size,
    )
    fix = ended(around, failure, f'"vision_batch_size": {wanted}')
    yield Finding("L03", _severity(around, failure), title, _quote(most), fix, _link(failure))


def static_graph(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    """static_graph with accumulation."""
    given = launch.get("ddp_static_graph", "static_graph", "ddp_config.static_graph")
    if given and given.on and launch.accumulation > 1:
        title = around.say("static_graph with gradient accumulation ends in an internal assertion of torch.")
        fix = "--ddp_static_graph false"
        yield Finding("L04", "warning", title, _quote(given), fix, _link("F3"))


def mixed_data(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    """Samples without an image among those with one, or a text-only data set, under ZeRO-3."""
    given = launch.get("dataset", "data_path", "train_file", "dataset_name", "train_data_path")
    if given is None or (around.model and not around.model.vision):
        return
    for path in given.value.split(","):
        counted = count(path) if os.path.isfile(path) else None
        if counted is None or counted.rows == 0 or counted.images == counted.rows:
            continue
        failure = {0: "F19", 1: "F16", 2: "F16", 3: "F11"}[launch.stage]
        if counted.images == 0 and launch.stage != 3:
            continue
        title = around.say(
            "{without} of {rows} samples have no image: ranks then wait for each other.",
            without=counted.rows - counted.images,
            rows=counted.rows,
        )
        fix = ended(around, failure, around.say("give each of them an image; a blank one will do"))
        yield Finding("L05", _severity(around, failure), title, _quote(given), fix, _link(failure))


def save_ungathered(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    """ZeRO-3 that does not gather what it saves."""
    given = launch.get("zero_optimization.stage3_gather_16bit_weights_on_model_save")
    stated = launch.get("zero_optimization.stage")
    if launch.stage == 3 and stated and (given is None or given.off) and launch.lora is None:
        title = around.say("Nothing gathers the weights when the model is saved.")
        fix = '"stage3_gather_16bit_weights_on_model_save": true'
        yield Finding("L06", "warning", title, _quote(stated), fix, _link("F25"))


def folk_remedies(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    """What people add against these failures, which costs something and is needed no longer."""
    unused, checkpointing = launch.get("ddp_find_unused_parameters"), launch.checkpointing
    if unused and unused.on and launch.stage == 0 and "F3" in around.armed:
        title = around.say("Looking for unused parameters costs time every step.")
        fix = around.say("leave it out, unless a part of the model is never used")
        yield Finding("L07", "note", title, _quote(unused), fix, _link("F19"))
    if (
        checkpointing
        and checkpointing.off
        and not launch.fsdp
        and (around.model is None or around.model.vision)
    ):
        title = around.say(
            "Checkpointing is off, which costs memory; against these failures it is not needed."
        )
        yield Finding("L08", "note", title, _quote(checkpointing), _CHECKPOINT)
    timeout = launch.get("ddp_timeout", "deepspeed_timeout")
    if timeout and (timeout.number or 0) > 7200:
        title = around.say("A long time-out does not end a hang, it only shows it later.")
        yield Finding("L09", "note", title, _quote(timeout), "--ddp_timeout 1800", _link("F11"))


_CHECKPOINT = f"--gradient_checkpointing true {REENTRANT}"


def renamed_flags(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    """Flags that a newer transformers does not know."""
    for old, (new, since) in _RENAMED.items():
        given = launch.options.get(old)
        if old == "warmup_ratio" and launch.swift:
            continue  # ms-swift has kept it
        if given and inside(around, "transformers", f">={since}.dev0"):
            title = around.say("--{old} is gone from transformers {since} on.", old=old, since=since)
            fix = f"--{new} {given.value}"
            yield Finding(
                "L10",
                "note" if "D" in around.armed else "warning",
                title,
                _quote(given),
                fix,
                _link("D"),
            )


_RENAMED = {
    "evaluation_strategy": ("eval_strategy", "4.51.0"),
    "warmup_ratio": ("warmup_steps", "5.15.0"),
}


def lost_micro_batches(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    """ZeRO-2 with accumulation: the last of a window alone counts, or, offloaded, the first and the last."""
    given = launch.get("gradient_accumulation_steps")
    offloaded = launch.offloaded
    right, range_ = (2, ">=0.15.4,<0.19.0.dev0") if offloaded else (1, ">=0.17.6.dev0,<0.18.3.dev0")
    if launch.stage == 2 and given and launch.accumulation > right and inside(around, "deepspeed", range_):
        title = around.say(
            "Only the first and the last micro-batch of each step count, without an error."
            if offloaded
            else "Only the last micro-batch of each step counts, without an error."
        )
        fix = ended(around, "F18", "pip install 'deepspeed>=0.19.8'")
        severity = _severity(around, "F18")
        yield Finding("L11", severity, title, _quote(given), fix, _link("F18"))


def experts(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    """A mixture of experts under ZeRO."""
    if around.model and around.model.experts and launch.stage >= 2:
        title = around.say("Ranks that send tokens to different experts wait for each other.")
        fix = ended(around, "F27", "deepspeed.utils.set_z3_leaf_modules(model, [TheSparseBlock])")
        yield Finding("L12", _severity(around, "F27"), title, around.model.kind, fix, _link("F27"))


def generates(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    """GRPO and its kin generate while checkpointing is on."""
    named = " ".join(
        [*launch.programs, *(said.value for name, said in launch.options.items() if name == "rlhf_type")]
    ).lower()
    given = launch.checkpointing
    local = not ((fast := launch.get("use_vllm")) and fast.on)
    if "grpo" in named and given and given.on and local:
        title = around.say("generate() with checkpointing on loses its KV cache half way.")
        fix = ended(around, "F30", "--use_vllm true")
        yield Finding("L13", _severity(around, "F30"), title, _quote(given), fix, _link("F30"))


def llamafactory_reentrant(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    """LLaMA-Factory fills in use_reentrant_gc: true, which a vision tower that is trained does not bear."""
    frozen, off = launch.get("freeze_vision_tower"), launch.get("disable_gradient_checkpointing")
    trains = launch.llamafactory and frozen is not None and frozen.off and not (off and off.on)
    if trains and launch.get("use_reentrant_gc") is None and launch.stage != 3:
        failure = "F1" if launch.stage else "F3"
        title = around.say("LLaMA-Factory fills in use_reentrant_gc: true where nothing is said.")
        fix = ended(around, failure, "use_reentrant_gc: false")
        yield Finding("L14", _severity(around, failure), title, "", fix, _link(failure))


RULES: Sequence[Rule] = (
    explicit_reentrant,
    zero3_lora,
    slices,
    static_graph,
    mixed_data,
    save_ungathered,
    folk_remedies,
    renamed_flags,
    lost_micro_batches,
    experts,
    generates,
    llamafactory_reentrant,
)


def _quote(given: Option) -> str:
    return printable(f"{given.where}: {given.name} = {given.value[:80]}")


def inside(around: Around, name: str, specifier: str) -> bool:
    """Whether the version of ``name`` that is installed lies in ``specifier``."""
    version = around.installed.get(name)
    if version is None:
        return True  # not known here: the launch may be for another machine
    try:
        return versions.satisfies(version, specifier)
    except ValueError:
        return True
