"""Real launchers and real frameworks, started as a user starts them.

The proof that the fast runner of the other tests tells the truth: the same failures, and the same
cure, under ``torchrun`` with HF Trainer and under ms-swift's own command line. "Right" is the same
command with gradient checkpointing off, its ranks forked (``tests.lab.forked``), compared by the losses
and gradient norms it prints and by which LoRA weights have moved in the adapter it saves.
``VLMPATCH_FULL=1`` adds ms-swift 3.4.1's DPO under DDP and 4.6.0's SFT under ZeRO-2, which `make test` runs
under other engines (``test_minicpmv_launched.py``, ``test_zero3_swift.py``), and HF Trainer under ZeRO-2,
which it runs on forked ranks and in the demo.
"""

from __future__ import annotations

import functools
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.conftest import Visible
from tests.lab import envs, forked, launch
from tests.lab.launch import Finished
from tests.lab.outcomes import READY_TWICE, REDUCED_TWICE, RIGHT, UNTRAINED, Outcome
from tests.standin.cells import FULL
from vlmpatch_lab.ports import free_port

RUN = ("python", "-m", "vlmpatch", "run")
LIMIT = 300.0  # seconds; a run takes 10 to 60
PRINTED = 3e-4  # relative: what frameworks print is rounded to three or four digits
MODEL = "MODEL"  # stands for the checkpoint's folder in a command


@dataclass(frozen=True)
class Command:
    """A training command, and what it does without vlmpatch."""

    name: str
    stack: str
    words: tuple[str, ...]
    off: tuple[str, ...]  # what switches checkpointing off
    bare: Outcome


def hf(name: str, engine: str, forwards: int, bare: Outcome) -> Command:
    script = ("torchrun", "--nproc_per_node", "2", "tests/programs/train_hf.py", "--model", MODEL)
    options = ("--engine", engine, "--forwards", str(forwards))
    return Command(name, "tf457-ds0182", (*script, *options), ("--no-checkpointing",), bare)


SWIFT = """
    --model MODEL --model_type qwen2_vl --template qwen2_vl --torch_dtype float32 --fp16 false --bf16 false
    --max_steps 2 --logging_steps 1 --per_device_train_batch_size 1 --gradient_accumulation_steps 1
    --lora_dropout 0 --freeze_vit false --split_dataset_ratio 0 --save_steps 2 --report_to none
    --check_model false
"""


def swift(name: str, stack: str, words: str, bare: Outcome) -> Command:
    command = ("swift", *words.split(), *SWIFT.split())
    return Command(name, stack, command, ("--gradient_checkpointing", "false"), bare)


ON_CPU = "--use_cpu true --ddp_backend gloo"
SFT_341 = f"sft --train_type lora {ON_CPU} --dataset MODEL/data/sft.jsonl"
DPO_341 = f"rlhf --rlhf_type dpo --train_type lora {ON_CPU} --dataset MODEL/data/dpo.jsonl"
SFT_460 = "sft --tuner_type lora --deepspeed zero2 --dataset MODEL/data/sft.jsonl"
MORE = [
    swift("ms-swift 3.4.1 dpo, DDP", "swift341", DPO_341, READY_TWICE),
    # ms-swift 4.6 forces reentrant checkpointing under DeepSpeed, but gives the ViT input gradients
    # of its own, and Qwen2-VL runs each block once a backward.
    swift("ms-swift 4.6.0 sft, ZeRO-2", "swift460", SFT_460, RIGHT),
    hf("HF Trainer, ZeRO-2, one forward", "zero2", 1, UNTRAINED),
    hf("HF Trainer, ZeRO-2, two forwards", "zero2", 2, REDUCED_TWICE),
]
COMMANDS = [
    # HF Trainer sets find_unused_parameters for a PeftModel, so one forward is enough.
    hf("HF Trainer, DDP", "ddp", 1, READY_TWICE),
    swift("ms-swift 3.4.1 sft, DDP", "swift341", SFT_341, READY_TWICE),
    *(MORE if FULL else []),
]
KNOWN = {command.name: command for command in COMMANDS}
each_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)


@dataclass(frozen=True)
class Training:
    """A finished launch and the folder it was told to save to."""

    finished: Finished
    folder: Path

    def printed(self) -> list[float]:
        """The losses and gradient norms of every step, in order."""
        found = re.findall(r"'(?:loss|grad_norm)': '?([\d.e+-]+)", self.finished.output)
        assert len(found) >= 4, f"no losses in {self.finished}"
        return [float(value) for value in found]

    def untrained(self) -> list[str]:
        """The LoRA B matrices of the saved adapter that are as they began: zero."""
        (path,) = sorted(self.folder.rglob("adapter_model.safetensors"))
        data = path.read_bytes()
        start = 8 + struct.unpack("<Q", data[:8])[0]
        header = {name: entry for name, entry in json.loads(data[8:start]).items() if "lora_B" in name}
        assert header, f"no LoRA in {path}"
        spans = {name: entry["data_offsets"] for name, entry in header.items()}
        return [name for name, (a, b) in spans.items() if not any(data[start + a : start + b])]


Start = Callable[..., Training]
Measure = Callable[[Command], Training]


@pytest.fixture(scope="module")
def start(visible: Visible, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Run a command of a stack once, with words before and after it."""

    @functools.cache
    def run(command: Command, before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> Training:
        stack = envs.read_stacks()[command.stack]
        with visible():
            print("\n" + " ".join([*before, f"[{command.name}]", *after]), flush=True)
            envs.make(stack)
            model = launch.checkpoint(stack, "qwen2_vl")
        folder = tmp_path_factory.mktemp("output")
        words = [*before, *command.words, *after, "--output_dir", str(folder)]
        port = str(free_port())
        finished = launch.run(
            stack,
            [word.replace(MODEL, str(model)) for word in words],
            limit=LIMIT,
            # torchrun reads its own port from PET_MASTER_PORT, ms-swift from MASTER_PORT.
            env={"NPROC_PER_NODE": "2", "USE_HF": "1", "MASTER_PORT": port, "PET_MASTER_PORT": port},
            gloo="zero2" in command.words,
        )
        assert not finished.timed_out, str(finished)
        assert not finished.left, f"{finished.left} processes left by {finished}"
        return Training(finished, folder)

    return run


@pytest.fixture(scope="module")
def measure(tmp_path_factory: pytest.TempPathFactory) -> Measure:
    """The same command with checkpointing off and without vlmpatch, on forked ranks."""

    @functools.cache
    def run(command: Command) -> Training:
        stack = envs.read_stacks()[command.stack]
        folder = tmp_path_factory.mktemp("right")
        model = str(launch.checkpoint(stack, "qwen2_vl"))
        words = [word.replace(MODEL, model) for word in (*command.words, *command.off)]
        bare = {"VLMPATCH_DISABLE": "all"}
        zero = "zero2" in words
        return on_forked_ranks(stack, [*words, "--output_dir", folder / "saved"], folder, bare, gloo=zero)

    return run


def on_forked_ranks(
    stack: envs.Stack,
    words: Sequence[str | Path],
    folder: Path,
    env: Mapping[str, str],
    *,
    gloo: bool = False,
    waiting: bool = False,
) -> Training:
    """A launcher's command without its launcher; it saves into a folder of ``folder``."""
    job = forked.job_of(words)
    imports = forked.SWIFT.get(stack.name, (*forked.STACK, "deepspeed"))
    env = {"USE_HF": "1", **env}
    ended = forked.run(stack, [job], folder, imports=imports, env=env, gloo=gloo, waiting=waiting)
    return Training(ended[job], folder)


@each_command
def test_without_vlmpatch(command: Command, start: Start, measure: Measure) -> None:
    bare = start(command)
    if command.bare.error:
        died(bare, command.bare)
    elif command.bare.untrained:
        assert bare.finished.rc == 0, str(bare.finished)
        assert bare.untrained(), "every LoRA weight has moved"
        assert all(command.bare.untrained in name for name in bare.untrained()), bare.untrained()
    else:
        is_right(bare, measure(command))


@each_command
def test_through_vlmpatch_run(command: Command, start: Start, measure: Measure) -> None:
    is_right(start(command, before=RUN), measure(command))


@pytest.mark.slow
def test_imported_as_the_first_line(start: Start, measure: Measure) -> None:
    """`make test` launches it watched, in ``test_watch.py``."""
    command = KNOWN["HF Trainer, DDP"]
    is_right(start(command, after=("--import-vlmpatch",)), measure(command))


@pytest.mark.slow
def test_imported_by_swift_as_a_plugin(start: Start, measure: Measure, tmp_path: Path) -> None:
    """ms-swift's own way to a user's file, by when it has imported everything itself."""
    plugin = tmp_path / "plugin.py"
    plugin.write_text("import vlmpatch\n")
    command = KNOWN["ms-swift 3.4.1 sft, DDP"]
    run = start(command, after=("--external_plugins", str(plugin)))
    is_right(run, measure(command))


@pytest.mark.slow
def test_what_the_command_line_says_is_overruled_where_it_can_only_fail(start: Start) -> None:
    command = KNOWN["ms-swift 3.4.1 sft, DDP"]
    said = ("--gradient_checkpointing_kwargs", '{"use_reentrant": true}')
    patched = start(command, before=RUN, after=said)
    is_right(patched, start(command, after=command.off))
    assert patched.finished.output.count("vlmpatch [explicit-reentrant-warning]") == 1, patched.finished


def died(training: Training, how: Outcome) -> None:
    assert training.finished.rc != 0, training.finished
    assert re.search(how.error or "", training.finished.output), training.finished


def is_right(training: Training, right: Training) -> None:
    """It ended well, printed what ``right`` printed, and every LoRA weight has moved."""
    for each in (training, right):
        assert each.finished.rc == 0, str(each.finished)
        assert not each.untrained(), each.untrained()
    assert close(training.printed(), right.printed()), f"{training.printed()} against {right.printed()}"


def close(got: list[float], right: list[float]) -> bool:
    if len(got) != len(right):
        return False
    return all(abs(a - b) <= PRINTED * abs(b) for a, b in zip(got, right, strict=True))
