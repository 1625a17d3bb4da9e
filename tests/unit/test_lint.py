"""``doctor --command``, ``--ds-config``, ``--model``: what is known to go wrong is said before the run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmpatch.tools import codes
from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint import configuration, model, rules
from vlmpatch.tools.lint.command import read
from vlmpatch.tools.lint.context import Around
from vlmpatch.tools.lint.launch_config import LaunchConfig
from vlmpatch.tools.lint.model import Model, Tower
from vlmpatch.tools.lint.rules import lint
from vlmpatch.tools.view.language import Words

VLM = Model(".", "qwen2_vl", vision=True, experts=False, remote=False)
INSTALLED = {"transformers": "4.57.6", "deepspeed": "0.18.2", "torch": "2.8.0"}


NONREENTRANT = """--gradient_checkpointing_kwargs '{"use_reentrant": false}'"""

Ending = Mapping[str, tuple[str, ...]]


def around(
    ending: Mapping[str, tuple[str, ...]] = MappingProxyType({}), kind: Model = VLM, **installed: str
) -> Around:
    return Around(kind, {**INSTALLED, **installed}, ending, Words("en"))


def of(command: str, folder: Path = Path("."), given_: Around | None = None) -> dict[str, Finding]:
    reading = read(command, "the command", str(folder))
    launches = reading.launches or (LaunchConfig(),)
    launches[0].problems.extend(reading.problems)
    return {finding.code: finding for launch in launches for finding in lint(launch, given_ or around())}


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("""swift sft --gradient_checkpointing_kwargs '{"use_reentrant": true}'""", "L01"),
        (f"torchrun train.py --use_lora true --deepspeed zero3 {NONREENTRANT}", "L02"),
        ("torchrun train.py --use_peft --deepspeed zero3_offload --use_reentrant=false", "L02"),
        ("torchrun finetune.py --max_slice_nums 9 --per_device_train_batch_size 2", "L03"),
        ("swift sft --ddp_static_graph true --gradient_accumulation_steps 4", "L04"),
        ("swift sft --gradient_checkpointing false", "L08"),
        ("swift sft --ddp_timeout 360000", "L09"),
        ("torchrun finetune.py --evaluation_strategy steps", "L10"),
        ("swift sft --deepspeed zero2 --gradient_accumulation_steps 8", "L11"),
        ("swift sft --deepspeed zero2_offload --gradient_accumulation_steps 8", "L11"),
        ("swift rlhf --rlhf_type grpo --gradient_checkpointing true", "L13"),
        ("llamafactory-cli train --finetuning_type lora --freeze_vision_tower false", "L14"),
        ("swift sft 'unbalanced", "L00"),
    ],
)
def test_what_goes_wrong_is_said(command: str, code: str) -> None:
    assert code in of(command)


def test_each_code_has_one_file_that_says_it() -> None:
    files = [path.read_text() for path in Path(rules.__file__).parent.glob("[!_]*.py")]
    said = [code for text in files for code in set(re.findall(r'"(L\d\d)"', text))]
    assert len(rules.rules()) == len(files) == len(said)
    assert sorted(said) == [code for code in codes.read() if code.startswith("L") and code != "L00"]


@pytest.mark.parametrize(
    "command",
    [
        "swift sft --model Qwen/Qwen2-VL-7B-Instruct --dataset x --train_type lora",
        "torchrun --nproc_per_node 8 train.py --deepspeed zero2 --gradient_accumulation_steps 1",
        "torchrun --nproc_per_node 8 train.py --deepspeed zero2_offload --gradient_accumulation_steps 2",
        "swift sft --tuner_type lora --deepspeed zero3 --warmup_ratio 0.05",
        "llamafactory-cli train --finetuning_type lora --stage sft --do_train true",
        "accelerate launch train.py --gradient_checkpointing false --fsdp full_shard",
        "python train.py --max_slice_nums 4",
        "ls -l",
        "",
    ],
)
def test_an_innocent_command_is_let_be(command: str) -> None:
    assert of(command) == {}


CODE = """
class Qwen2VLAttention(nn.Module): ...
class Qwen2VLDecoderLayer(nn.Module): ...
class Qwen2VLVisionBlock(nn.Module): ...
"""


@pytest.fixture
def transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed transformers, as far as the code of one model goes."""
    code = tmp_path / "site" / "transformers" / "models" / "qwen2_vl" / "modeling_qwen2_vl.py"
    code.parent.mkdir(parents=True)
    code.write_text(CODE)
    (tmp_path / "site" / "transformers" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize("file", ["accelerate.yaml", "fsdp.json"])
def test_a_class_that_the_model_lacks_is_named_with_those_it_has(tmp_path: Path, file: str) -> None:
    classes = "fsdp_transformer_layer_cls_to_wrap"
    said: dict[str, Any] = {
        "fsdp.json": {"transformer_layer_cls_to_wrap": ["Qwen2VLLayer", "Qwen2VLVisionBlock"]}
    }
    said["accelerate.yaml"] = {"fsdp_config": {classes: "Qwen2VLLayer"}, "distributed_type": "FSDP"}
    (tmp_path / file).write_text(json.dumps(said[file]))
    command = {
        "accelerate.yaml": "accelerate launch --config_file accelerate.yaml train.py --learning_rate 1",
        "fsdp.json": "torchrun train.py --fsdp 'full_shard auto_wrap' --fsdp_config fsdp.json",
    }[file]
    halves = (Tower("language", "qwen2_vl_text", 28, 1536), Tower("vision", "qwen2_vl_vision", 32, 1280))
    found = of(command, tmp_path, around(kind=VLM._replace(towers=halves)))["L20"]
    assert "no class Qwen2VLLayer:" in found.title
    assert found.fix.count("Qwen2VLDecoderLayer,Qwen2VLVisionBlock") == found.fix.count("DecoderLayer") == 1
    assert found.severity == "warning"


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize(
    ("classes", "kind"),
    [
        ("Qwen2VLDecoderLayer,Qwen2VLVisionBlock", VLM),
        ("OwnLayer", VLM._replace(remote=True)),
        ("OwnLayer", VLM._replace(kind="newer_vl")),
    ],
)
def test_a_class_that_may_be_there_is_let_be(classes: str, kind: Model) -> None:
    command = f"torchrun train.py --fsdp full_shard --fsdp_transformer_layer_cls_to_wrap {classes}"
    assert "L20" not in of(command, given_=around(kind=kind))


def test_fsdp_cannot_flatten_what_is_frozen() -> None:
    inline = """--fsdp full_shard --fsdp_config '{"use_orig_params": false}'"""
    launch = f"torchrun train.py {inline} --freeze_vision_tower true"
    assert of(launch)["L21"].severity == "warning"
    assert of(launch, given_=around({"F38": ("fsdp-mixed-units",)}))["L21"].severity == "note"
    for fine in (
        launch.replace("false", "true"),
        launch.replace("--freeze_vision_tower true", ""),
        launch.replace('{"', '{"version": 2, "'),
        f"{launch} --use_lora true",
        launch.replace("--fsdp full_shard --fsdp_config", "--own_config"),
    ):
        assert "L21" not in of(fine), fine
    assert "L21" not in of(launch, given_=around(transformers="5.23.0"))


def test_a_release_that_reads_weights_outside_their_unit() -> None:
    plain = "torchrun train.py --fsdp full_shard"
    (fix,) = [finding.fix for finding in of(plain, given_=around(transformers="4.53.0")).values()]
    assert fix == "pip install 'transformers!=4.53.0'"
    assert "L26" not in of(plain, given_=around(transformers="4.53.1"))
    assert "L26" not in of("torchrun train.py --use_lora true", given_=around(transformers="4.53.0"))


def test_liger_reads_a_head_that_is_a_unit_of_its_own() -> None:
    launch = "llamafactory-cli train --finetuning_type lora --enable_liger_kernel true --fsdp full_shard"
    asked = f"{launch} --additional_target embed_tokens,lm_head"
    assert of(asked)["L26"].fix == "pip install 'liger-kernel>=0.5.10'"
    for version, found in (("0.5.9", True), ("0.5.10", False)):
        beside = around()._replace(installed={**INSTALLED, "liger-kernel": version})
        assert ("L26" in of(asked, given_=beside)) is found
    for fine in (
        launch,
        asked.replace("embed_tokens,lm_head", "embed_tokens"),
        asked.replace("--enable_liger_kernel true", ""),
        asked.replace("--fsdp full_shard", "--deepspeed zero2"),
        asked.replace("finetuning_type lora", "finetuning_type full"),
    ):
        assert "L26" not in of(fine), fine


def test_offloaded_micro_batches_are_lost_in_other_releases(tmp_path: Path) -> None:
    offload = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    (tmp_path / "ds.json").write_text(json.dumps(offload))
    command = "torchrun train.py --deepspeed ds.json --gradient_accumulation_steps 3"
    found = of(command, tmp_path, around(deepspeed="0.16.9"))
    assert found["L11"].title.startswith("Only the first and the last")
    for fine in ("0.14.5", "0.19.8"):
        assert "L11" not in of(command, tmp_path, around(deepspeed=fine))
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    assert "L11" not in of(command, tmp_path, around(deepspeed="0.16.9"))


def configured(tmp_path: Path, version: str, /, **config: object) -> dict[str, Finding]:
    """What is found of a DeepSpeed configuration."""
    (tmp_path / "ds.json").write_text(json.dumps(config))
    return of("torchrun train.py --deepspeed ds.json", tmp_path, around(deepspeed=version))


def test_reductions_that_overlap(tmp_path: Path) -> None:
    for stage, found in ((0, False), (1, True), (2, True), (3, False)):
        zero = {"stage": stage, "overlap_comm": True}
        assert ("L23" in configured(tmp_path, "0.16.9", zero_optimization=zero)) is found
    assert "L23" not in configured(tmp_path, "0.16.9", zero_optimization={"stage": 2, "overlap_comm": False})
    assert "L23" not in configured(tmp_path, "0.16.9", zero_optimization={"stage": 2})


def test_reductions_that_overlap_are_a_note_where_a_patch_acts(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2, "overlap_comm": True}}))
    command = "torchrun train.py --deepspeed ds.json"
    ending = {"F54": ("zero-overlapped-reduction", "zero-overlapped-buckets")}
    for acting, severity in ((ending, "note"), ({}, "warning")):
        found = of(command, tmp_path, around(acting, deepspeed="0.17.3"))["L23"]
        assert found.severity == severity


def test_clipping_that_nothing_asks_for(tmp_path: Path) -> None:
    zero = {"stage": 2}
    assert configured(tmp_path, "0.19.8", zero_optimization=zero)["L24"].fix == '"gradient_clipping": 0'
    assert "L24" not in configured(tmp_path, "0.19.2", zero_optimization=zero)
    for said in (0, 1.0, "auto"):
        assert "L24" not in configured(tmp_path, "0.19.8", zero_optimization=zero, gradient_clipping=said)


def test_a_precision_that_nothing_names(tmp_path: Path) -> None:
    zero, lines = {"stage": 2}, {"": True, " --bf16 true": True, " --fp16 true": False, " --fp16 false": True}
    for config, found in (
        ({}, True),
        ({"fp16": {"loss_scale": 0}}, True),
        ({"bf16": {"enabled": "auto"}}, False),
        ({"fp16": {"enabled": False}}, False),
        ({"amp": {"enabled": True}}, False),
    ):
        (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": zero, **config}))
        for line, asks in lines.items():
            command = f"torchrun train.py --deepspeed ds.json{line}"
            for version, old in (("4.57.6", True), ("5.0.0", False)):
                given = of(command, tmp_path, around(transformers=version))
                assert ("L28" in given) is (found and asks and old), (config, line, version)
    ending = around({"F87": ("inputs-rounded-to-fp16",)}, transformers="4.57.6")
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": zero}))
    assert of("torchrun train.py --deepspeed ds.json", tmp_path, ending)["L28"].severity == "note"


def test_sequence_parallelism_divides_in_one_stage_only() -> None:
    command = "accelerate launch --parallelism_config_sp_size 2 train.py --zero_stage"
    assert "loss / 2" in of(f"{command} 2")["L25"].fix
    assert "L25" not in of(f"{command} 3")
    assert "L25" not in of("accelerate launch --parallelism_config_sp_size 1 train.py --zero_stage 2")


SLICED = """
from torch.distributed.nn.functional import all_gather
mpu = UlyssesSPAttentionHF.register_with_transformers(model, "sdpa", sequence_parallel_size=size)
loss = sum(all_gather(loss, group=group))
"""


@pytest.mark.parametrize(
    ("program", "stage", "told"),
    [
        (SLICED, 2, True),
        (SLICED, 1, True),
        (SLICED, 3, False),
        (SLICED.replace("size=size", "size=1"), 2, False),
        (SLICED.replace("size=size", "size=4"), 2, True),
        (SLICED + "engine.backward(loss / sp_world_size)", 2, False),
        (SLICED + "loss /= mpu.get_sequence_parallel_world_size()", 2, False),
        (SLICED + "loss = loss / tokens", 2, True),
        (SLICED.replace("distributed.nn.functional", "distributed"), 2, False),
        ("mpu = UlyssesSPAttentionHF.register_with_transformers(model, sequence_parallel_size=2)", 2, False),
    ],
)
def test_the_loss_of_sequence_parallelism_in_a_script(
    program: str, stage: int, told: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(program)
    found = of(f"deepspeed train.py --zero_stage {stage}", tmp_path)
    assert ("L25" in found) is told
    if told:
        assert found["L25"].evidence == "train.py:3"
        assert f"loss / {'4' if 'size=4' in program else 'size'}," in found["L25"].fix


def test_a_patch_ends_what_is_weighed_by_tokens_alone(tmp_path: Path) -> None:
    acting = around({"F56": ("sequence-parallel-mean",)})
    for gathered, severity in ((SLICED, "warning"), (SLICED + "counts = all_gather(tokens)", "note")):
        (tmp_path / "train.py").write_text(gathered)
        found = of("deepspeed train.py --zero_stage 2", tmp_path, acting)
        assert found["L25"].severity == severity
    command = "accelerate launch --parallelism_config_sp_size 2 train.py --zero_stage 2"
    assert of(command, given_=acting)["L25"].severity == "note"


def test_what_a_patch_ends_is_a_note() -> None:
    command = f"torchrun train.py --use_lora true --deepspeed zero3 {NONREENTRANT}"
    assert of(command)["L02"].severity == "warning"
    ended = of(command, given_=around({"F4": ("zero3-recompute-release",)}))["L02"]
    assert (ended.severity, ended.fix) == (
        "note",
        "nothing: vlmpatch fixes this (F4: zero3-recompute-release)",
    )
    assert "L02" not in of(command, given_=around(deepspeed="0.19.3"))


SCRIPT = """#!/bin/bash
GPUS_PER_NODE=8
MODEL="openbmb/MiniCPM-V-2_6"
DATA="{data}"
export NCCL_DEBUG=INFO
DISTRIBUTED_ARGS="
    --nproc_per_node $GPUS_PER_NODE
"
torchrun $DISTRIBUTED_ARGS finetune.py  \\
    --model_name_or_path $MODEL \\
    --data_path $DATA \\
    --use_lora true --tune_vision true --tune_llm false \\
    --max_slice_nums 20 \\
    --evaluation_strategy "steps" \\
    --gradient_checkpointing true \\
    --deepspeed ds_config_zero3.json
"""
SEVERAL = """BATCH=2
ACCUMULATION=$((16 / (BATCH * 2)))
swift rollout --model a --tuner_type lora --deepspeed zero3 &
torchrun train.py --per_device_train_batch_size ${OTHER:-$BATCH} \\
    --gradient_accumulation_steps $ACCUMULATION --image_max_pixels $((1280 * 28 * 28)) \\
    --deepspeed conf/zero2.json
"""


def test_a_script_counts_and_is_started_above_its_folder(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "zero2.json").write_text('{"zero_optimization": {"stage": 2}}')
    (tmp_path / "scripts" / "train.sh").write_text(SEVERAL)
    (made,) = read(str(tmp_path / "scripts" / "train.sh"), "the command").launches
    assert made.problems == []
    assert (made.accumulation, made.stage, made.lora) == (4, 2, None)
    assert made.options["image_max_pixels"].value == "1003520"
    assert made.options["per_device_train_batch_size"].value == "2"


DEEPSPEED = {"zero_optimization": {"stage": 3}, "gradient_accumulation_steps": "auto"}


def test_a_script_with_its_configuration_and_data(tmp_path: Path) -> None:
    rows = [{"image": "a.png", "conversations": []}, {"conversations": []}, {"conversations": []}]
    data = tmp_path / "train.json"
    data.write_text(json.dumps(rows))
    (tmp_path / "ds_config_zero3.json").write_text(json.dumps(DEEPSPEED))
    script = tmp_path / "finetune_lora.sh"
    script.write_text(SCRIPT.format(data=data))
    found = of(f"bash {script}")
    assert {"L02", "L03", "L05", "L10"} <= found.keys()
    assert found["L05"].title.startswith("2 of 3 samples have no image")
    assert found["L10"].fix == "--eval_strategy steps"
    assert found["L10"].evidence.startswith("finetune_lora.sh:9")


def test_yaml_of_llamafactory_trl_and_accelerate(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED))
    (tmp_path / "lf.yaml").write_text("finetuning_type: lora\ndeepspeed: ds.json\nuse_reentrant_gc: false\n")
    assert "L02" in of("llamafactory-cli train lf.yaml", tmp_path)
    (tmp_path / "acc.yaml").write_text("deepspeed_config:\n  zero_stage: 3\ndistributed_type: DEEPSPEED\n")
    command, newest = (
        "accelerate launch --config_file acc.yaml train.py --use_peft",
        around(transformers="5.1.0"),
    )
    assert "L02" in of(command, tmp_path, newest)
    assert "L02" not in of(command, tmp_path)  # the default was reentrant
    (tmp_path / "trl.yaml").write_text("gradient_checkpointing_kwargs:\n  use_reentrant: true\n")
    assert "L01" in of("trl sft --config trl.yaml", tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "command", "fix"),
    [
        (
            "lf.yaml",
            "finetuning_type: lora\nuse_reentrant_gc: true\n",
            "llamafactory-cli train lf.yaml",
            "use_reentrant_gc: false",
        ),
        (
            "ax.yml",
            "adapter: lora\ngradient_checkpointing_kwargs:\n  use_reentrant: true\n",
            "axolotl train ax.yml",
            "gradient_checkpointing_kwargs: {use_reentrant: false}",
        ),
        (
            "trl.yaml",
            "gradient_checkpointing_kwargs: {use_reentrant: true}\n",
            "trl sft --config trl.yaml",
            "gradient_checkpointing_kwargs: {use_reentrant: false}",
        ),
        (
            "train.py",
            "args = TrainingArguments(gradient_checkpointing_kwargs=dict(use_reentrant=True))\n",
            "torchrun train.py --gradient_checkpointing_kwargs '{}'",
            'gradient_checkpointing_kwargs = {"use_reentrant": False}',
        ),
        ("none", "", "torchrun train.py --use_reentrant true", "--use_reentrant false"),
    ],
)
def test_advice_is_written_for_the_file_it_concerns(
    name: str, text: str, command: str, fix: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    assert of(command, tmp_path)["L01"].fix == fix


def test_advice_on_a_setting_of_yaml_is_a_line_of_yaml(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("ddp_timeout: 180000000\ngradient_checkpointing: false\nadapter: lora\n")
    found = of("axolotl train a.yaml", tmp_path)
    assert found["L09"].fix == "ddp_timeout: 1800"
    assert found["L08"].fix.splitlines() == [
        "gradient_checkpointing: true",
        "gradient_checkpointing_kwargs: {use_reentrant: false}",
    ]


def test_a_configuration_that_is_missing_is_told(tmp_path: Path) -> None:
    assert "gone.yaml is not there" in of("llamafactory-cli train gone.yaml", tmp_path)["L00"].evidence


LORA = "train.py --gradient_checkpointing True --use_lora True"


def test_lora_with_the_reentrant_default_of_ddp() -> None:
    found = of(f"torchrun {LORA}")["L15"]
    assert (found.severity, found.link.split()[-1]) == ("warning", "F3")
    assert of(f"torchrun {LORA}", given_=around({"F3": ("a",)}))["L15"].severity == "note"
    assert "L15" not in of(f"torchrun {LORA}", given_=around(transformers="5.1.0"))
    for fine in (
        f"python {LORA}",
        f"torchrun {LORA} --use_reentrant false",
        f"torchrun --nproc_per_node 1 {LORA}",
    ):
        assert "L15" not in of(fine)
    for version, told in (("3.4.1", True), ("3.6.0", False)):
        swift = around()._replace(installed={**INSTALLED, "ms-swift": version})
        for asked in (" --train_type lora", ""):  # which is ms-swift's default
            assert ("L15" in of(f"NPROC_PER_NODE=2 swift sft{asked}", given_=swift)) is told
        assert "L15" not in of("NPROC_PER_NODE=2 swift sft --train_type full", given_=swift)


def test_lora_in_the_tower_with_the_reentrant_default() -> None:
    for engine in ("--deepspeed zero1", "--deepspeed zero2", "--deepspeed zero3", "--nproc_per_node 1"):
        assert of(f"torchrun {engine} {LORA}")["L16"].link.endswith("F5")
    assert "L16" not in of(f"torchrun {LORA}")  # it ends in L15 first
    ended = of(f"torchrun {LORA} --deepspeed zero3", given_=around({"F5": ("a",)}))["L16"]
    assert (ended.severity, ended.patches) == ("note", ("a",))
    for frozen in ("--freeze_vision_tower true", "--tune_vision false", "--mm_vision_select_layer -2"):
        assert "L16" not in of(f"torchrun {LORA} --deepspeed zero3 {frozen}")
    assert "L16" in of(f"torchrun {LORA} --deepspeed zero3 --freeze_vision_tower true --vision_lora true")


FULL = "torchrun --nproc_per_node 8 train.py --gradient_checkpointing True"


def test_the_reentrant_default_with_a_trained_tower_may_fail() -> None:
    for engine, failure in (("", "F3"), ("--deepspeed zero2", "F1"), ("--deepspeed zero3", "F8")):
        found = of(f"{FULL} {engine}")["L19"]
        assert (found.severity, found.link.split()[-1], found.patches) == ("note", failure, ())
        assert found.fix == NONREENTRANT
        acting = around({failure: ("a", "b", "c", "d")})
        fixed = of(f"{FULL} {engine}", given_=acting)["L19"].fix
        assert fixed == f"nothing: vlmpatch fixes this ({failure}: a, b, c …)"
    one = FULL.replace("nproc_per_node 8", "nproc_per_node 1")
    for fine in (
        f"{FULL} {NONREENTRANT}",
        f"{FULL} --freeze_vision_tower true",
        one,
        f"{FULL} --fsdp full_shard",
    ):
        assert "L19" not in of(fine)
    assert "L19" not in of(FULL, given_=around(transformers="5.1.0"))


def test_a_launch_for_another_machine_is_judged_by_what_may_be_there() -> None:
    """No torch, no transformers: what older ones do by default is said, and what ends it where it runs."""
    ids = {"F3": ("gradient-checkpointing-default",), "F5": ("vision-input-grads",)}
    nothing = Around(None, dict.fromkeys(INSTALLED), {}, Words("en"), ids)
    ddp, zero2 = (of(f"torchrun {LORA} {engine}", given_=nothing) for engine in ("", "--deepspeed zero2"))
    assert zero2["L16"].title == (
        "Reentrant checkpointing, the default before transformers 5, leaves LoRA in a vision tower untrained."
    )
    assert zero2["L16"].fix.splitlines() == [NONREENTRANT, "import vlmpatch  # F5: vision-input-grads"]
    assert (zero2["L16"].severity, zero2["L16"].patches) == ("warning", ())
    assert ddp["L15"].fix.endswith("\nimport vlmpatch  # F3: gradient-checkpointing-default")
    here = of(f"torchrun {LORA} --deepspeed zero2")["L16"]
    assert here.title.startswith("Reentrant checkpointing, the default here,")
    assert here.fix == NONREENTRANT


@pytest.mark.parametrize(
    ("command", "severity", "failure"),
    [
        (f"torchrun {LORA}", "warning", "F3"),
        ("torchrun train.py --ddp_find_unused_parameters true", "warning", "F3"),
        (f"torchrun {LORA} --deepspeed zero3", "warning", "F5"),
        (f"torchrun {LORA} --deepspeed zero3 --freeze_vision_tower true", "note", "F8"),
        (f"torchrun {LORA} --deepspeed zero3 --freeze_vision_tower false --vision_lora false", "note", "F8"),
        ("torchrun train.py --deepspeed zero2", "note", "F1"),
        ("torchrun train.py", "note", "F3"),
    ],
)
def test_a_written_true_is_weighed_by_what_it_does_here(command: str, severity: str, failure: str) -> None:
    found = of(f"{command} --use_reentrant true")["L01"]
    assert (found.severity, found.link.split()[-1]) == (severity, failure)


def test_a_written_true_is_ended_where_a_patch_gives_the_inputs_a_gradient() -> None:
    ending = around({"F5": ("reentrant-checkpoint-inputs",), "F3": ("gradient-checkpointing-default",)})
    tower = of(f"torchrun {LORA} --deepspeed zero3 --use_reentrant true", given_=ending)["L01"]
    assert (tower.severity, tower.patches) == ("note", ("reentrant-checkpoint-inputs",))
    assert of(f"torchrun {LORA} --use_reentrant true", given_=ending)["L01"].severity == "warning"


def test_a_written_true_that_can_only_end_the_run_is_overruled_where_that_patch_acts() -> None:
    overruled = {failure: ("explicit-reentrant-warning",) for failure in ("F1", "F3")}
    acting = around({**overruled, "F8": ("zero3-repeated-reduction",)})
    found = of(f"torchrun {LORA} --use_reentrant true", given_=acting)["L01"]
    assert (found.severity, found.patches) == ("note", ("explicit-reentrant-warning",))
    for stage, by in (("zero2", "F1: explicit-reentrant-warning"), ("zero3", "F8: zero3-repeated-reduction")):
        twice = of(f"torchrun train.py --deepspeed {stage} --use_reentrant true", given_=acting)["L01"]
        assert (twice.severity, twice.fix) == ("note", f"nothing: vlmpatch fixes this ({by})")


TRAINER = """
from transformers import Trainer
class Base(Trainer):
    def _get_train_sampler(self): ...
class Mine(Base):
    def compute_loss(self, model, inputs, return_outputs=False): ...
    def _save_checkpoint(self, model, trial, metrics=None):
        super()._save_checkpoint(model, trial, metrics)
class Modern(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs): ...
    def _get_train_sampler(self, *args): ...
    def log(self, logs, start_time=None): ...
class Whole(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None): ...
    def compute_loss(self, model, inputs): ...
class Other:
    def compute_loss(self, logits): ...
"""


@pytest.mark.parametrize(
    ("program", "flags", "expected"),
    [
        ("Mine(model=m)", "", {"_get_train_sampler", "_save_checkpoint", "compute_loss"}),
        ("kind = Mine if args.a else Modern\nkind()", "", set()),
        ("kind = Mine if args.a else Base\nkind()", "", {"_get_train_sampler"}),
        ("kind = Mine if not args.a else Modern\nkind()", "--a true", set()),
        ("Modern(tokenizer=t)", "", set()),
        ("Whole()", "", set()),
        ("Other()", "", set()),
        ("import transformers\ndef log(self, logs): ...\ntransformers.Trainer.log = log", "", {"log"}),
    ],
)
def test_a_trainer_older_than_transformers_is_told(
    program: str, flags: str, expected: set[str], tmp_path: Path
) -> None:
    (tmp_path / "trainers.py").write_text(TRAINER)
    (tmp_path / "train.py").write_text(f"from trainers import *\n{program}\n")
    reading = read(f"torchrun train.py {flags}", "the command", str(tmp_path))
    found = [finding for finding in lint(reading.launches[0], around()) if finding.code == "L17"]
    assert {finding.title.partition("calls ")[2].split()[0] for finding in found} == expected
    ends = {"_save_checkpoint": "F28", "log": "F28"}
    assert all(finding.severity == "warning" for finding in found)
    for finding in found:
        name = finding.title.partition("calls ")[2].split()[0]
        assert finding.link.endswith(ends.get(name, " D"))


def test_a_trainer_of_its_time_is_let_be(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER + "Mine(tokenizer=t)\n")
    old, new = (
        around(transformers="4.45.2"),
        around({"D": ("trainer-tokenizer-argument",)}, transformers="5.1.0"),
    )
    assert "L17" not in of("torchrun train.py", tmp_path, old)
    assert of("torchrun train.py", tmp_path, new)["L17"].code == "L17"


UNFROZEN = "model.projector.requires_grad_(True)"
NAMED = "for n, p in model.named_parameters():"
LOOP = "for p in model.projector.parameters():\n    p.requires_grad = True"
CHOSEN = "for n, p in model.named_parameters():\n    if 'visual' in n:\n        p.requires_grad_(True)"
WRAPPED = "model = get_peft_model(model, config)"


@pytest.mark.parametrize(
    ("program", "flags", "expected"),
    [
        (f"{UNFROZEN}\n{WRAPPED}", "", ["model.projector"]),
        (f"{LOOP}\n{WRAPPED}", "", ["model.projector"]),
        (f"{CHOSEN}\n{WRAPPED}", "", ["model.visual"]),
        (f"if args.lora:\n    {UNFROZEN}\n    {WRAPPED}", "--lora true", ["model.projector"]),
        (f"with zero():\n    {UNFROZEN}\n{WRAPPED}", "", ["model.projector"]),
        (f"if args.lora:\n    {UNFROZEN}\n{WRAPPED}", "", []),
        (
            f"{NAMED}\n    if 'projector.' in n:\n        p.requires_grad = True\n{WRAPPED}",
            "",
            ["model.projector"],
        ),
        (f"{NAMED}\n    if wanted(n):\n        p.requires_grad = True\n{WRAPPED}", "", ["model"]),
        (
            f"{NAMED}\n    if 'llm' in n: pass\n    else: p.requires_grad = True\n{WRAPPED}",
            "",
            ["model"],
        ),
        (f"{WRAPPED}\n{UNFROZEN}", "", []),
        (f"{UNFROZEN}\n{WRAPPED}\n{UNFROZEN}", "", []),
        (f"{UNFROZEN}\nother = get_peft_model(other, config)", "", []),
        (f"model.requires_grad_(True)\n{WRAPPED}", "", []),
        (f"for p in model.parameters():\n    p.requires_grad = True\n{WRAPPED}", "", []),
        (f"model.visual.requires_grad_(False)\n{WRAPPED}", "", []),
        (f"{UNFROZEN}\nconfig = LoraConfig(modules_to_save=['projector'])\n{WRAPPED}", "", []),
        (f"def hook(m, i, output):\n    output.requires_grad_(True)\n{WRAPPED}", "", []),
    ],
)
def test_what_peft_freezes_again_is_told(
    program: str, flags: str, expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(f"from peft import get_peft_model\n{program}\n")
    reading = read(f"torchrun train.py {flags}", "the command", str(tmp_path))
    found = [finding for finding in lint(reading.launches[0], around()) if finding.code == "L22"]
    assert [finding.title.partition(" is")[0] for finding in found] == expected


@pytest.mark.parametrize(
    ("program", "flags", "found"),
    [
        ("", """--gradient_checkpointing_kwargs '{"determinism_check": "none"}'""", True),
        ("", """--gradient_checkpointing_kwargs '{"determinism_check": "default"}'""", False),
        ("kwargs = {'use_reentrant': False, 'determinism_check': 'none'}", "", True),
        ("h = checkpoint(block, h, use_reentrant=False, determinism_check='none')", "", True),
        ("h = checkpoint(block, h, use_reentrant=False, determinism_check=choice)", "", False),
        ("determinism_check = 'none'", "", False),
        ("kwargs = {'determinism_check': 'none'}", "--gradient_checkpointing false", False),
    ],
)
def test_a_recomputation_that_nobody_compares_is_told(
    program: str, flags: str, found: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(f"{program}\n")
    command = f"torchrun train.py {flags}"
    for kind, severity in ((VLM, "note"), (VLM._replace(experts=True), "warning")):
        told = of(command, tmp_path, around(kind=kind)).get("L27")
        assert (told.severity if told else None) == (severity if found else None)


def test_files_that_import_each_other_are_parsed_once(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from b import Mine\nMine()\n")
    (tmp_path / "b.py").write_text("import a\nfrom . import a\n" + TRAINER)
    assert "L17" in of("torchrun a.py", tmp_path)


def test_a_file_beside_the_program_comes_before_a_folder_of_its_name_above(tmp_path: Path) -> None:
    (inner := tmp_path / "scripts").mkdir()
    (tmp_path / "trainers").mkdir()
    (inner / "a.py").write_text("from trainers import Mine\nMine()\n")
    (inner / "trainers.py").write_text(TRAINER)
    assert "L17" in of("torchrun a.py", inner)


@pytest.mark.parametrize(
    ("trl", "source", "told"),
    [("0.21.0", "", True), ("0.24.0", "", False), ("0.24.0", "class MyTrainer: x = m.generate(i)", True)],
)
def test_generation_is_told_of_trainers_that_do_it_with_checkpointing_on(
    trl: str, source: str, told: bool, tmp_path: Path
) -> None:
    (tmp_path / "grpo.py").write_text(source)
    found = of("torchrun grpo.py --gradient_checkpointing true", tmp_path, around(trl=trl))
    assert ("L13" in found) is told
    keeps = around(trl=trl, transformers="5.24.0")  # layers do, where no gradient is recorded
    assert "L13" not in of("torchrun grpo.py --gradient_checkpointing true", tmp_path, keeps)


def test_a_tower_without_checkpointing_is_told_where_it_is_in_the_graph() -> None:
    command = "swift sft --train_type lora --vit_gradient_checkpointing false"
    assert of(command, given_=around(transformers="5.2.0"))["L18"].fix == "--vit_gradient_checkpointing true"
    assert "L18" not in of(command)
    assert "L18" not in of(f"{command} --gradient_checkpointing false", given_=around(transformers="5.2.0"))


def test_what_switches_adapters_off_is_heard() -> None:
    assert "L15" not in of("torchrun train.py --gradient_checkpointing true --use_lora False --lora_r 8")
    assert "L15" not in of("torchrun train.py --gradient_checkpointing true --train_type full --lora_rank 8")


def test_accelerate_gathers_by_a_word_of_its_own(tmp_path: Path) -> None:
    text = "deepspeed_config:\n  zero_stage: 3\n  zero3_save_16bit_model: {}\n"
    for value, told in (("false", True), ("true", False)):
        (tmp_path / "a.yaml").write_text(text.format(value))
        found = of("accelerate launch --config_file a.yaml train.py", tmp_path)
        assert ("L06" in found) is told
        assert not told or found["L06"].fix == "zero3_save_16bit_model: true"


def test_full_tuning_under_zero3_saves_what_it_gathers(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED))
    assert "L06" in of("torchrun train.py --deepspeed ds.json", tmp_path)


def test_a_file_that_is_not_there_or_broken_is_said(tmp_path: Path) -> None:
    assert "ds.json is not there" in of("torchrun train.py --deepspeed ds.json", tmp_path)["L00"].evidence
    (tmp_path / "ds.json").write_text("{")
    assert "L00" in of("torchrun train.py --deepspeed ds.json", tmp_path)
    (tmp_path / "a.yaml").write_text("a: [")
    assert "L00" in of("llamafactory-cli train a.yaml", tmp_path)


def test_files_that_name_each_other_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "torchrun.sh").write_text("bash torchrun.sh\ntorchrun train.py --config a.yaml\n")
    (tmp_path / "a.yaml").write_text("config: a.yaml\ngradient_checkpointing: false\n")
    assert "L08" in of("bash torchrun.sh", tmp_path)


def test_a_model_is_read_from_its_configuration_alone(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3_vl_moe",
        "text_config": {"num_experts": 128},
        "vision_config": {"depth": 1},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = model.read(str(tmp_path))
    assert isinstance(found, Model)
    assert found[:5] == (str(tmp_path), "qwen3_vl_moe", True, True, False)
    assert "L12" in of("swift sft --deepspeed zero3", given_=around(kind=found))
    assert "No such file" in str(model.read(str(tmp_path / "nothing")))


@given(st.text(max_size=200))
def test_any_command_can_be_looked_at(text: str) -> None:
    of(text)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = [
    "zero_optimization",
    "max_slice_nums",
    "gradient_accumulation_steps",
    "deepspeed",
    "lora_r",
    "dataset",
]


@given(st.dictionaries(st.sampled_from(NAMES), values))
def test_any_configuration_can_be_looked_at(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, object]
) -> None:
    path = tmp_path_factory.mktemp("any") / "ds.json"
    path.write_text(json.dumps(data))
    made = LaunchConfig()
    configuration.from_file(str(path), made)
    lint(made, around())


CHOOSES = """
def choose(args, model):
    if args.tune_vision:
        for name, parameter in model.visual.named_parameters():
            parameter.requires_grad = True
    else:
        model.visual.requires_grad_(False)
    for parameter in model.model.parameters():
        parameter.requires_grad = args.tune_llm
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (CHOOSES, ["model.model"]),
        (CHOOSES.replace("args.tune_llm", "False"), []),  # without a flag the tower is frozen, too
        (CHOOSES.replace("model.model", "self.model"), []),
        (CHOOSES.replace("model.model", "model.model.language_model"), []),
        (CHOOSES + "    model.visual.requires_grad_(False)\n", []),
        ("model.visual.requires_grad_(False)\nmodel.model.requires_grad_(False)\n", []),
        ("model.visual.requires_grad_(False)\nmodel.model.requires_grad_()\n", ["model.model"]),
        ("model.model.requires_grad_()\nmodel.visual.requires_grad_(False)\n", []),
    ],
)
def test_what_overrules_a_choice_for_the_tower_is_named(tmp_path: Path, text: str, found: list[str]) -> None:
    (tmp_path / "train.py").write_text(text)
    launch = read("torchrun train.py", "the command", str(tmp_path)).launches[0]
    told = [each.title.partition(" holds")[0] for each in lint(launch, around()) if each.code == "L29"]
    assert told == found


def test_before_the_tower_was_inside_nothing_overrules(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CHOOSES)
    earlier = around(transformers="4.51.3")
    assert "L29" not in of("torchrun train.py --tune_llm true", tmp_path, earlier)
