"""The programs of ``programs.toml``, and runs of them."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab import envs, forked, launch, launches
from tests.lab.forked import Job
from tests.lab.launch import Finished

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
START = HERE / "start.py"
MODELS = HERE / "models"  # makers of checkpoints that few programs want, each a place by its name
STEPS = 3
REFERENCE = "reference"  # DDP without checkpointing, with vlmpatch
ENGINES = ("ddp", "zero2", "zero3")
FSDP = ("fsdp1", "fsdp2")  # under which a program is run that names them
# What every program is told. Plain SGD: Adam makes as much of a rounding error as of a gradient.
TRAINING = (
    *("--output_dir", "{out}", "--max_steps", str(STEPS), "--per_device_train_batch_size", "1"),
    *("--gradient_accumulation_steps", "1"),
    *("--optim", "sgd", "--learning_rate", "0.05", "--logging_steps", "1", "--save_strategy", "no"),
    *("--report_to", "none", "--bf16", "False", "--seed", "1"),
)
LIMIT = 60.0  # seconds of a machine with nothing else to do: the slowest takes a third
ALIKE = 1e-4  # of norms of gradients and of weights: ZeRO adds up ten million squares in float32
# What a smaller norm is held against: an adapter begins at zero, and the rounding of ZeRO's sums, which is
# the same to the last bit without checkpointing, is a large part of it.
SMALL = 1e-3
# The last is LLaMA-Factory's: it trains with the releases that are there.
ENVIRONMENT = {"WANDB_MODE": "disabled", "HF_DATASETS_OFFLINE": "1", "DISABLE_VERSION_CHECK": "1"}
KINDS = (*launches.READ, ".jinja", "/version")  # verl and TRL read the last two as they are imported
IMPORTS = ("torch", "transformers.trainer", "peft", "deepspeed")


@dataclass(frozen=True)
class Program:
    """One training program: where it lies, and what it is told."""

    id: str
    repository: str
    commit: str
    script: str
    arguments: tuple[str, ...]
    stack: str = "trl024"
    folders: tuple[str, ...] = ()  # in which its modules are looked for
    engines: tuple[str, ...] = ENGINES
    fails: tuple[str, ...] = ()  # engines under which it fails without vlmpatch
    says: tuple[str, ...] = ()  # patches that warn, each for a reason that is judged
    alike: float = ALIKE  # how far it may be from what is right
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)  # for start.py
    cwd: str = "."
    driver: str = ""  # a script of this folder that trains with the repository's code, where that cannot
    files: Mapping[str, str] = field(default_factory=dict, hash=False)  # what users write beside a command
    # How it is told to checkpoint, and how not to.
    on: tuple[str, ...] = ("--gradient_checkpointing", "True")
    off: tuple[str, ...] = ("--gradient_checkpointing", "False")

    @property
    def source(self) -> launches.Shipped:
        return launches.Shipped(self.repository, self.commit, self.cwd, self.script)


class Left(NamedTuple):
    """A repository whose program is not run here, and why."""

    repository: str
    why: str
    why_zh: str = ""


class Ended(NamedTuple):
    """How a run ended: its exit status, what it came to, and what it printed."""

    rc: int
    result: dict[str, Any] | None
    output: str

    @property
    def right(self) -> bool:
        """Whether it trained all its steps and ended in order."""
        return self.rc == 0 and self.result is not None and self.result["steps"] == STEPS


def read() -> tuple[dict[str, Program], tuple[Left, ...]]:
    """Those that run, by id, and those that do not."""
    tables = _tables()
    found = [
        Program(**{name: _hashable(value) for name, value in each.items()}) for each in tables["program"]
    ]
    return {each.id: each for each in found}, tuple(Left(**each) for each in tables["left"])


def judged(language: str) -> dict[str, str]:
    """What is to be said of each warning that a program may meet, by the patch that prints it."""
    return {
        each["patch"]: each["why" if language == "en" else f"why_{language}"]
        for each in _tables().get("warning", ())
    }


def _tables() -> dict[str, Any]:
    return tomllib.loads((HERE / "programs.toml").read_text(encoding="utf-8"))


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def sources() -> Path | None:
    """The folder of clones, where there is one."""
    said = os.environ.get("VLMPATCH_SOURCES")
    return Path(said) if said else None


def clone_of(program: Program) -> Path | None:
    folder = sources()
    found = launches.clone(folder, program.source) if folder else None
    return found if found and found.is_dir() else None


Run = tuple[Program, str]  # a program and an engine


class Workshop:
    """Unpacked repositories, and runs of their programs.

    Args:
        folder: where they are put.
        say: is told of each run as it begins.
    """

    def __init__(self, folder: Path, say: Callable[[str], object] = print) -> None:
        self.folder, self.say = folder, say

    def unpacked(self, program: Program) -> Path:
        """The repository's files at the commit that is named."""
        folder, clone = self.folder / program.repository.replace("/", "+"), clone_of(program)
        if not folder.exists():
            assert clone is not None
            launches.unpacked(clone, program.commit, folder, KINDS)
        return folder

    def run(self, stack: str, runs: Sequence[Run], *, patched: bool) -> dict[Run, Ended]:
        """Run programs of one stack, each on two ranks; all are forked from one process."""
        made = checkpoints(stack)
        wanted = {name: program for program, _ in runs for name in makers(program)}
        folders = {"made": made} | {
            name: of_maker(stack, name, self.unpacked(program)) for name, program in wanted.items()
        }
        out = Path(tempfile.mkdtemp(dir=self.folder))
        jobs = {run: self.job(run, folders, out / str(number)) for number, run in enumerate(runs)}
        numbers = {job: f"{number} of {len(jobs)}" for number, job in enumerate(jobs.values(), 1)}
        named = {job: f"{program.id} {engine}" for (program, engine), job in jobs.items()}
        how = f"{stack}, {'with vlmpatch' if patched else 'bare'}"
        finished = forked.run(
            envs.read_stacks()[stack],
            list(jobs.values()),
            out / "printed",
            imports=IMPORTS,
            env={"VLMPATCH_DISABLE": "" if patched else "all", **ENVIRONMENT, **remote_code(made)},
            gloo=True,
            waiting=True,
            begun=lambda job: self.say(f"{how}, {numbers[job]}: {named[job]}"),
        )
        return {
            run: ended(finished[job], out / str(number)) for number, (run, job) in enumerate(jobs.items())
        }

    def job(self, run: Run, made: Mapping[str, Path], out: Path) -> Job:
        """The words of one run, as a user types them; ``made`` are folders of checkpoints by their names."""
        program, engine = run
        root = self.unpacked(program)
        out.mkdir(parents=True)
        places = {"out": str(out / "trained"), "root": str(root), "files": str(out)}
        places |= {name: str(folder) for name, folder in made.items()}
        for name, text in program.files.items():
            (out / name).write_text(_filled(text, places))
        folders = os.pathsep.join(str(root / each) for each in program.folders)
        sharded = {"fsdp": engine.removeprefix("fsdp")} if engine in FSDP else {}
        settings = _filled(json.dumps({**program.settings, **sharded}), places)
        words = [_filled(each, places) for each in (*TRAINING, *program.arguments)]
        script = HERE / program.driver if program.driver else root / program.script
        start = (START, out / "result.json", folders, settings, script)
        switch = program.off if engine == REFERENCE else program.on
        under = program.settings.get(REFERENCE, "ddp") if engine == REFERENCE else engine
        engine_words = _of_engine(under, out, program.settings.get("zero", {}))
        return Job((*map(str, start), *words, *switch, *engine_words), limit=LIMIT)


def checkpoints(stack: str) -> Path:
    """The folder of checkpoints and data for ``stack``, made once."""
    return _made(stack, f"shipped-{stack}-{recipe()}", ["python", "-m", "tests.shipped.make"])


def of_maker(stack: str, name: str, repository: Path) -> Path:
    """The folder of what ``models/NAME.py`` makes, beside the checkpoints that all programs have."""
    command = ["python", "-m", f"tests.shipped.models.{name}", str(checkpoints(stack))]
    folder = f"shipped-{stack}-{name}-{recipe((name,))}"
    return _made(stack, folder, command, {"REPOSITORY": str(repository)})


def _made(stack: str, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> Path:
    """The folder of that name that ``command`` fills, inside ``stack``, once."""
    made = envs.read_stacks()[stack]
    envs.make(made)
    folder = envs.cache_root() / "models" / name
    with envs.locked(folder.with_suffix(".lock")):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            finished = launch.run(made, [*command, folder], limit=240, env=env)
            if finished.rc != 0:
                raise RuntimeError(str(finished))
            (folder / "complete").touch()
    return folder


def makers(program: Program) -> tuple[str, ...]:
    """The names of the makers whose folders it is told."""
    said = json.dumps([program.arguments, program.settings, program.files])
    return tuple(name for name in sorted(path.stem for path in MODELS.glob("*.py")) if f"{{{name}}}" in said)


def recipe(names: Sequence[str] = ()) -> str:
    """Of what makes checkpoints and data, with the makers of these names, as it is now."""
    sources = [HERE / "make.py", *sorted((HERE.parent / "standin").rglob("*.py"))]
    sources += [MODELS / f"{name}.py" for name in names]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:8]


def remote_code(made: Path) -> dict[str, str]:
    """Where transformers puts the code that a checkpoint brings along."""
    return {"HF_MODULES_CACHE": str(made / "modules")}


def _filled(word: str, places: Mapping[str, str]) -> str:
    for name, place in places.items():
        word = word.replace(f"{{{name}}}", place)
    return word


def _of_engine(engine: str, out: Path, zero: Mapping[str, Any]) -> list[str]:
    """What the launch line says of the engine; ``zero`` is more of DeepSpeed's configuration."""
    if engine in FSDP:
        path = out / "fsdp.json"
        # accelerate knows no CPU that could receive the states of modules.
        path.write_text(json.dumps({"version": int(engine[-1]), "sync_module_states": False}))
        return ["--fsdp", "full_shard auto_wrap", "--fsdp_config", str(path)]
    if not engine.startswith("zero"):
        return ["--ddp_backend", "gloo", "--use_cpu", "true"]
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {
            "stage": int(engine[-1]),
            "overlap_comm": False,
            "stage3_gather_16bit_weights_on_model_save": True,  # as the repositories' own configurations say
            **zero.get("zero_optimization", {}),
        },
        "zero_allow_untested_optimizer": True,
        **{name: value for name, value in zero.items() if name != "zero_optimization"},
    }
    path = out / "deepspeed.json"
    path.write_text(json.dumps(config))
    return ["--deepspeed", str(path)]


def ended(finished: Finished, out: Path) -> Ended:
    """What a run left."""
    result = out / "result.json"
    return Ended(finished.rc, json.loads(result.read_text()) if result.exists() else None, finished.output)


def difference(found: Mapping[str, Any], right: Mapping[str, Any]) -> float:
    """How far norms of gradients and of weights are apart, relative to their size."""
    pairs: list[tuple[float, float]] = list(zip(found["norms"], right["norms"], strict=True))
    pairs += [
        (math.sqrt(found["sums"][_plain(name)]), math.sqrt(value))
        for name, value in right["sums"].items()
        if _plain(name) in found["sums"]
    ]
    return max(abs(one - other) / max(abs(other), SMALL) for one, other in pairs)


def _plain(name: str) -> str:
    return name.removeprefix("module.")
