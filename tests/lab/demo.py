"""``make demo``: a real two-rank fine-tune of a tiny Qwen2-VL, first without vlmpatch, then with it.

The script is ``train_hf.py``, an ordinary HF Trainer script with LoRA and gradient checkpointing; the
launcher is torchrun. Nothing of the script or the command changes but the words
``python -m vlmpatch run`` in front.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.lab import envs, launch
from vlmpatch_lab.ports import free_port

STACK = "tf457-ds0182"
SCRIPT = Path(__file__).with_name("train_hf.py")
ENGINES = {"ddp": "DDP", "zero2": "DeepSpeed ZeRO-2"}
LIMIT = 300.0  # seconds; a run takes about 30


@dataclass(frozen=True)
class Outcome:
    """How one run ended, in the words of its own output."""

    trained: bool
    words: str


def main() -> int:
    stack = envs.read_stacks()[STACK]
    runs = [(engine, patched) for engine in ENGINES for patched in (False, True)]
    say(f"1/{len(runs) + 2}  environment: {', '.join(p for p in stack.packages if '==' in p)}")
    envs.make(stack)
    say(f"2/{len(runs) + 2}  a tiny Qwen2-VL checkpoint, random weights")
    model = launch.checkpoint(stack, "qwen2_vl")
    outcomes = {}
    for number, (engine, patched) in enumerate(runs, 3):
        outcomes[engine, patched] = train(f"{number}/{len(runs) + 2}", stack, model, engine, patched)
    table(outcomes)
    as_promised = all(outcome.trained is patched for (_, patched), outcome in outcomes.items())
    return 0 if as_promised else 1


def train(step: str, stack: envs.Stack, model: Path, engine: str, patched: bool) -> Outcome:
    """Run the script on two ranks and show what a user would see of it."""
    prefix = ["python", "-m", "vlmpatch", "run"] if patched else []
    # A forward a batch is enough for DDP to fail; ZeRO-2 needs a parameter used in two segments.
    forwards = "2" if engine == "zero2" else "1"
    command = [*prefix, "torchrun", "--nproc_per_node", "2", "--master_port", str(free_port())]
    command += [str(SCRIPT.relative_to(launch.ROOT)), "--engine", engine, "--forwards", forwards]
    say(f"{step}  {ENGINES[engine]}, {'with' if patched else 'without'} vlmpatch")
    say(f"     $ {' '.join(command)} --model …")
    done = launch.run(stack, [*command, "--model", model], limit=LIMIT, gloo=engine == "zero2")
    outcome = read(done)
    print("     " + outcome.words.replace("\n", "\n     "), flush=True)
    return outcome


def read(done: launch.Finished) -> Outcome:
    """The losses of a run that ended well, else the last of its traceback."""
    losses = [float(found) for found in re.findall(r"'loss': '?([\d.]+)", done.output)]
    if done.rc == 0 and losses:
        return Outcome(True, "trains: loss " + ", ".join(f"{loss:.4f}" for loss in losses))
    return Outcome(False, "\n".join(["dies:", *traceback(done.output.splitlines())]))


def traceback(lines: list[str]) -> list[str]:
    """The end of the first traceback that says what went wrong, as it was printed."""
    lines = [line for line in lines if not line.endswith("^^")]
    wanted = re.compile(r"ready only once|already been reduced")
    last = next((number for number, line in enumerate(lines) if wanted.search(line)), len(lines) - 1)
    return [re.sub(r"/\S*/site-packages/", "", line)[:110] for line in lines[max(0, last - 8) : last + 1]]


def table(outcomes: dict[tuple[str, bool], Outcome]) -> None:
    """The short of it."""
    print(f"\n{'':18}{'without vlmpatch':58}with vlmpatch")
    for engine, name in ENGINES.items():
        bare, patched = (outcomes[engine, is_patched].words.splitlines()[-1] for is_patched in (False, True))
        print(f"{name:18}{re.sub(r'^.*?(?=[A-Z][a-zA-Z]*Error)', '', bare)[:55]:58}{patched}")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
