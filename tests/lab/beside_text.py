"""Every class of a transformers that takes images or sounds beside text, where one rank has none of them.

    python -m tests.lab.beside_text tf524-ds0198 [--only llava,gemma3] [--bare]

prints what becomes of each, and how many of what there are. ``tests.lab.beside_text_ranks`` says what is run.
Classes of which no small model can be made, or no consistent one, say so in their own words.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from tests.lab import envs, launch
from tests.lab.modes import lines_of

REFUSED = "blank image or sound refused"


def word(line: dict[str, str]) -> str:
    """What became of a class, without its details."""
    return REFUSED if "refused" in line else line["found"].partition(":")[0]


def perform(name: str, only: str, *, bare: bool) -> list[dict[str, str]]:
    """Run the classes inside the stack, printing each as it ends; a line of each."""
    stack = envs.read_stacks()[name]
    envs.make(stack)
    with tempfile.TemporaryDirectory(prefix="beside-text-") as folder:
        out = Path(folder) / "lines"
        words: list[str | Path] = ["-m", "tests.lab.beside_text_ranks", "--out", out, "--only", only]
        words += ["--bare"] if bare else []
        told: list[dict[str, str]] = []

        def tell() -> None:
            for line in lines_of(out)[len(told) :]:
                print(f"{line['family']}: {line['found']}", line.get("refused", ""), flush=True)
                told.append(line)

        # A backward in a thread of its own leaves a process whose forks cannot have another.
        here = {launch.BACKWARD: "here"}
        command = ["python", "-W", "ignore", *words]
        finished = launch.run(stack, command, limit=7200, env=here, meanwhile=tell)
        tell()
        if finished.rc != 0:
            raise RuntimeError(str(finished))
        return told


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.beside_text", description=__doc__)
    parser.add_argument("stack")
    parser.add_argument("--only", default="", help="families, by commas")
    parser.add_argument("--bare", action="store_true", help="without vlmpatch")
    asked = parser.parse_args()
    lines = perform(asked.stack, asked.only, bare=asked.bare)
    for what, count in Counter(map(word, lines)).most_common():
        print(f"{count} {what}")


if __name__ == "__main__":
    main()
