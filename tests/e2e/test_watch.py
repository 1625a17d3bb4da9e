"""``VLMPATCH_WATCH=1`` in real trainings: what fails in silence is said, with names; what is right too.

One is launched by torchrun, the others run on forked ranks; frameworks' launchers belong to `make test-all`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.test_launchers import MODEL, RUN, SFT_341, SWIFT, close
from tests.e2e.test_minicpmv_launched import start as in_script
from tests.e2e.test_minicpmv_launched import torchrun
from tests.lab import envs, forked, launch
from tests.lab.launch import Finished
from vlmpatch_lab.ports import free_port

STACK = "tf457-ds0182"
BARE = {"VLMPATCH_DISABLE": "all"}


@dataclass(frozen=True)
class Watched:
    """A run of ``train_hf.py``, and what the watch must say of it; ``wrong`` with every patch off."""

    words: str
    right: str = ""
    wrong: str = ""
    stack: str = STACK

    @property
    def waits(self) -> bool:
        """Whether its collectives must wait for each other on gloo."""
        return "zero3" in self.words

    def __str__(self) -> str:
        return f"{self.stack} {self.words}"


SAME = r"loss [\d.]+ and gradient norm [\d.]+ as with checkpointing off"
REACHED = r"3 steps, \d+ trainable parameters \([^()]*\), all reached"
UNREACHED = r"trainable parameters: \S*visual\S*, .* Likely cause: use_reentrant=True cuts the graph"
RUNS = [
    Watched("--engine ddp", right=rf"{REACHED}; the ranks agree; {SAME}"),
    Watched("--engine zero2", right=rf"{REACHED}; the ranks agree; {SAME}", wrong=UNREACHED),
    Watched(
        "--engine ddp --past-ddp --no-checkpointing", wrong="after step 1 the ranks hold different parameters"
    ),
]
SLOW = [
    Watched("--engine zero3", right=rf"{REACHED}$"),
    Watched("--engine ddp --accumulation 2", right=rf"{REACHED}; the ranks agree; {SAME}"),
    Watched("--engine zero2 --forwards 2", right="all reached; the ranks agree; not compared"),
    Watched("--engine zero2 --own-embeddings", right="the backward never reached .*visual"),
    Watched("--engine ddp", right=rf"{REACHED}; the ranks agree; {SAME}", stack="tf445-ds0154"),
    Watched("--engine zero2", right=rf"{REACHED}; the ranks agree; {SAME}", stack="tf523-ds0198"),
    Watched("--engine zero3", right=rf"{REACHED}$", stack="tf523-ds0198"),
]
each_run = pytest.mark.parametrize(
    "run", [*RUNS, *(pytest.param(run, marks=pytest.mark.slow) for run in SLOW)], ids=str
)
UNCHECKPOINTED = Watched("--engine ddp --no-checkpointing")
Start = Callable[..., Finished]


def words_of(run: Watched, out: Path) -> tuple[str, ...]:
    """The script with vlmpatch as its first line."""
    model = launch.checkpoint(envs.read_stacks()[run.stack], "qwen2_vl")
    script = ("tests/programs/train_hf.py", "--import-vlmpatch", "--model", str(model))
    return (*script, "--output_dir", str(out), *run.words.split())


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """How a run ended on forked ranks; runs of one kind share an import of their stack."""

    @functools.cache
    def together(
        runs: tuple[Watched, ...], stack: str, watch: str, bare: bool, waiting: bool
    ) -> dict[Watched, Finished]:
        found, out = envs.read_stacks()[stack], tmp_path_factory.mktemp("runs")
        envs.make(found)
        jobs = {run: forked.Job(words_of(run, out / f"saved{n}")) for n, run in enumerate(runs)}
        environ = {"VLMPATCH_WATCH": watch, **(BARE if bare else {})}
        imports = (*forked.STACK, "deepspeed")
        ended = forked.run(
            found, [*jobs.values()], out, imports=imports, env=environ, gloo=True, waiting=waiting
        )
        return {run: ended[job] for run, job in jobs.items()}

    def started(run: Watched, watch: str, bare: bool) -> Finished:
        known = SLOW if run in SLOW else RUNS if watch == "1" else [RUNS[0], UNCHECKPOINTED]
        kind = [each for each in known if (each.stack, each.waits) == (run.stack, run.waits)]
        asked = [each for each in kind if watch == "0" or (each.wrong if bare else each.right)]
        return together(tuple(asked), run.stack, watch, bare, run.waits)[run]

    return started


@each_run
def test_what_the_watch_says(run: Watched, start: Start) -> None:
    if run.right:
        says(run, start(run, "1", bare=False))
    if run.wrong:
        finished = start(run, "1", bare=True)
        assert finished.rc == 0, str(finished)
        assert re.search(rf"vlmpatch watch: .*{run.wrong}", finished.output), str(finished)


def says(run: Watched, finished: Finished) -> None:
    assert finished.rc == 0, str(finished)
    said, *counted = re.findall(r"vlmpatch watch: (.*)$", finished.output, re.M)
    assert re.search(run.right, said), said
    assert all(line.startswith("of the parameters: ") for line in counted), counted


def test_under_torchrun_it_prints_the_losses_of_a_run_without(start: Start, tmp_path: Path) -> None:
    """vlmpatch imported as the script's first line, watched, is what it is unwatched and uncheckpointed."""
    run, port = RUNS[0], str(free_port())
    stack = envs.read_stacks()[run.stack]
    command = ["torchrun", "--nproc_per_node", "2", *words_of(run, tmp_path)]
    environ = {"VLMPATCH_WATCH": "1", "MASTER_PORT": port, "PET_MASTER_PORT": port}
    launched = launch.run(stack, command, limit=300, env=environ)
    says(run, launched)
    plain, off = start(run, "0", bare=False), start(UNCHECKPOINTED, "0", bare=False)
    assert "vlmpatch watch" not in plain.output
    assert printed(plain) == printed(launched)
    assert close(printed(plain), printed(off))


def printed(finished: Finished) -> list[float]:
    """The losses and gradient norms of every step: rank 0 prints them."""
    found = re.findall(r"'(?:loss|grad_norm)': '?([\d.e+-]+)", finished.output)
    assert found, str(finished)
    return [float(value) for value in found]


def watched(name: str, *words: str | Path, bare: bool = False) -> Finished:
    """``words`` under ``vlmpatch run`` on that stack, watched; with every patch off where ``bare``."""
    stack = envs.read_stacks()[name]
    envs.make(stack)
    port = str(free_port())
    environ = {"VLMPATCH_WATCH": "1", "MASTER_PORT": port, "PET_MASTER_PORT": port, **(BARE if bare else {})}
    environ |= {"NPROC_PER_NODE": "2", "USE_HF": "1"}
    return launch.run(stack, [*RUN, *words], limit=300, env=environ, gloo=True)


def says_all_is_well(finished: Finished) -> None:
    """One sentence, and no finding."""
    (said,) = re.findall(r"vlmpatch watch: .*$", finished.output, re.M)
    assert re.search(r"\d steps, \d+ trainable parameters \([^()]*\), all reached", said), said


@pytest.mark.slow
def test_in_trl(tmp_path: Path) -> None:
    model = launch.checkpoint(envs.read_stacks()["trl024"], "qwen2_vl")
    script = ("torchrun", "--nproc_per_node", "2", "tests/programs/train_trl.py", "--model", model)
    wrong = watched("trl024", *script, "--output_dir", tmp_path, bare=True)
    assert wrong.rc == 0, str(wrong)
    assert re.search(rf"vlmpatch watch: .*{UNREACHED}", wrong.output), str(wrong)
    right = watched("trl024", *script, "--output_dir", tmp_path)
    assert right.rc == 0, str(right)
    says_all_is_well(right)


@pytest.mark.slow
def test_in_minicpmvs_script(standin: Path, tmp_path: Path) -> None:
    """Under plain DDP: its compute_loss goes round the wrapper, and no gradient is averaged."""
    zero = torchrun("zero2", standin, tmp_path)
    at = zero.index("--deepspeed")
    words = [*zero[:at], *zero[at + 2 :], *["--use_cpu", "true", "--ddp_backend", "gloo", "--max_steps", "3"]]

    def run(off: str) -> Finished:
        environ = {"VLMPATCH_WATCH": "1", "VLMPATCH_DISABLE": off}
        return in_script(STACK, [*RUN, *words], standin, standin / "finetune", **environ)

    wrong = run("trainer-self-model-under-ddp")
    assert wrong.rc == 0, str(wrong)
    assert re.search("vlmpatch watch: after step 2 the ranks hold different parameters: ", wrong.output)
    assert "Likely cause: the loss is computed past DDP's wrapper" in wrong.output
    right = run("")
    assert right.rc == 0, str(right)
    says_all_is_well(right)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "words"), [("swift341", SFT_341)])
def test_in_ms_swift(name: str, words: str, tmp_path: Path) -> None:
    """A vision tower is to be trained, and there is no image in the data."""
    model = str(launch.checkpoint(envs.read_stacks()[name], "qwen2_vl"))
    sft = [word.replace(MODEL, model) for word in ("swift", *words.split(), *SWIFT.split())]
    sft += ["--output_dir", str(tmp_path)]
    right = watched(name, *sft)
    assert right.rc == 0, str(right)
    says_all_is_well(right)
    assert re.search(SAME, right.output), str(right)
    turns = [{"role": role, "content": f"hello {role}"} for role in ("user", "assistant")]
    text = tmp_path / "text.jsonl"
    text.write_text((json.dumps({"messages": turns}) + "\n") * 8)
    wrong = watched(name, *(str(text) if word.endswith("sft.jsonl") else word for word in sft))
    assert wrong.rc == 0, str(wrong)
    assert re.search(r"the backward never reached .*visual.* no batch had an image", wrong.output), str(wrong)
