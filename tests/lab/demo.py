"""``make demo``: a two-rank fine-tune of a tiny Qwen2-VL, without vlmpatch, with it, and as it should be.

The script is ``tests/programs/train_hf.py``, an ordinary HF Trainer script with LoRA and gradient
checkpointing; the launcher is torchrun. Nothing of the script or the command changes but the words
``python -m vlmpatch run`` in front. What the losses should be is said by the same run without
checkpointing, which needs more memory and no vlmpatch.

    python -m tests.lab.demo STACK
"""

from __future__ import annotations

import io
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.lab import envs, launch
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read
from vlmpatch.tools.explain.answers import Answer, answer
from vlmpatch.tools.view.language import Words
from vlmpatch_lab.ports import free_port

SCRIPT = launch.ROOT / "tests" / "programs" / "train_hf.py"
ENGINES = {"ddp": "DDP", "zero2": "DeepSpeed ZeRO-2"}
WAYS = {
    "bare": "without vlmpatch",
    "patched": "with vlmpatch",
    "reference": "without vlmpatch, checkpointing off: what the losses should be",
}
LIMIT = 300.0  # seconds; a run takes about 20
EQUAL = 1e-4  # relative; the Trainer prints four digits
WIDTH = 100


@dataclass(frozen=True)
class Ending:
    """How one run ended, in the words of its own output."""

    losses: tuple[float, ...] = ()
    error: str = ""
    output: str = ""

    def __str__(self) -> str:
        if self.losses:
            return "trains: loss " + ", ".join(f"{loss:.4f}" for loss in self.losses)
        return f"dies: {self.error}"

    def equals(self, other: Ending) -> bool:
        """Whether both trained, with the same losses."""
        pairs = list(zip(self.losses, other.losses, strict=False))
        same = all(abs(one - two) <= EQUAL * abs(two) for one, two in pairs)
        return bool(pairs) and len(self.losses) == len(other.losses) and same


def main() -> int:
    stack = envs.read_stacks()[sys.argv[1]]
    steps = 2 + len(ENGINES) * len(WAYS)
    say(f"1/{steps}  environment: {', '.join(p for p in stack.packages if '==' in p)}")
    envs.make(stack)
    say(f"2/{steps}  a tiny Qwen2-VL checkpoint, random weights")
    model = launch.checkpoint(stack, "qwen2_vl")
    endings: dict[str, dict[str, Ending]] = {}
    for engine in ENGINES:
        of_engine = endings[engine] = {}
        for way in WAYS:
            number = 3 + sum(map(len, endings.values()))
            of_engine[way] = train(f"{number}/{steps}", stack, model, engine, way)
            explain(of_engine)
    table(endings)
    afterwards(stack, model)
    return 0 if all(map(as_promised, endings.values())) else 1


def train(step: str, stack: envs.Stack, model: Path, engine: str, way: str) -> Ending:
    """Run the script on two ranks and show what a user would see of it."""
    prefix = ["python", "-m", "vlmpatch", "run"] if way == "patched" else []
    # A forward a batch is enough for DDP to fail; ZeRO-2 needs a parameter used in two segments.
    forwards = "2" if engine == "zero2" else "1"
    command = [*prefix, "torchrun", "--nproc_per_node", "2", "--master_port", str(free_port())]
    command += [str(SCRIPT.relative_to(launch.ROOT)), "--engine", engine, "--forwards", forwards]
    command += ["--no-checkpointing"] if way == "reference" else []
    say(f"{step}  {ENGINES[engine]}, {WAYS[way]}")
    say(f"     $ {' '.join(command)} --model …")
    env = {"VLMPATCH_LOG": "info"}  # says what was applied
    done = launch.run(stack, [*command, "--model", model], limit=LIMIT, env=env, gloo=engine == "zero2")
    ending = ended(done)
    indented(str(ending))
    return ending


def ended(done: launch.Finished) -> Ending:
    """The losses of a run that ended well, else the message that says what went wrong, whole."""
    losses = [float(found) for found in re.findall(r"'loss': '?([\d.]+)", done.output)]
    if done.rc == 0 and losses:
        return Ending(tuple(losses), output=done.output)
    diagnosis = diagnosed(done.output).diagnosis
    message = diagnosis.hit.message if diagnosis.hit else diagnosis.first
    lines = message.text.strip().splitlines() if message else done.output.splitlines()[-5:]
    first = next((n for n, line in enumerate(lines) if re.search(r"\w(Error|Exception)\b", line)), 0)
    return Ending(
        error="\n".join(re.sub(r"^\[rank\d+\]: ?", "", line) for line in lines[first:]), output=done.output
    )


def diagnosed(output: str) -> Answer:
    """What ``vlmpatch explain`` makes of the output."""
    return answer(io.BytesIO(output.encode()), read(default_path()), Words("en"), None)


def explain(endings: dict[str, Ending]) -> None:
    """Why the latest run died, or which patches for that were applied where it trained."""
    way = list(endings)[-1]
    found = diagnosed(endings["bare"].output)
    if way == "bare" and found.ours:
        failure = found.ours.failure
        indented(f"why: {failure.id}, {failure.title[0]}. {failure.cause[0]}")
    elif way == "patched":
        named = [each.id for each in found.patches]
        applied = re.findall(r"^vlmpatch INFO: ([\w-]+): applied", endings["patched"].output, re.MULTILINE)
        ending = [name for name in dict.fromkeys(applied) if name in named]
        indented(f"applied, of the patches for that failure: {', '.join(ending) or 'none'}")


def as_promised(endings: dict[str, Ending]) -> bool:
    """Whether the run died bare, and trained with vlmpatch as it does without checkpointing."""
    return not endings["bare"].losses and endings["patched"].equals(endings["reference"])


def table(endings: dict[str, dict[str, Ending]]) -> None:
    """The short of it: the last loss of each run, or the first line of what it died of."""
    say("")
    for engine, of_engine in endings.items():
        say(ENGINES[engine])
        for way, ending in of_engine.items():
            indented(f"{WAYS[way].partition(':')[0]}: {short(str(ending))}")
        same = f"the same losses as without checkpointing, within {EQUAL:g} of each"
        good = same if as_promised(of_engine) else "NOT as it should be"
        indented(f"=> {good}")


def afterwards(stack: envs.Stack, model: Path) -> None:
    """What lies on the disk now, and what to do next."""
    size = sum(path.stat().st_size for path in stack.folder.rglob("*") if path.is_file()) / 1e9
    say(f"\nLeft on the disk, for the next time: {stack.folder} ({size:.1f} GB), {model.parent} and .venv.")
    say(f"  rm -rf {envs.cache_root()} .venv    removes all of it")
    say("Next:")
    say("  python -m vlmpatch doctor                  what your own environment needs, and why")
    say("  python -m vlmpatch run torchrun train.py   your own run; or `import vlmpatch` as its first line")
    say("  python -m vlmpatch explain train.log       the traceback you came with")


def short(text: str) -> str:
    """The first line of ``text``, cut after a sentence that would not fit."""
    first = text.splitlines()[0]
    sentence = re.split(r"(?<=\.) (?=[A-Z])", first)[0]
    return first if len(first) < WIDTH // 2 else f"{sentence} …"


def indented(text: str) -> None:
    for line in text.splitlines():
        say(textwrap.fill(line, WIDTH, initial_indent="     ", subsequent_indent="       "))


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make demo")
    sys.exit(main())
