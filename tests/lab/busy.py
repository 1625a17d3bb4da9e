"""A command beside processes that never rest, as on a machine that many share.

    python -m tests.lab.busy 8 python -m pytest tests/unit

ends with the command's exit status; the busy processes end with it, however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence


def main(words: Sequence[str]) -> int:
    """Run the command ``words[1:]`` beside ``words[0]`` processes."""
    if len(words) < 2 or not words[0].isdecimal():
        print("usage: python -m tests.lab.busy NUMBER COMMAND ...", file=sys.stderr)
        return 2
    loops = [
        multiprocessing.Process(target=_loop, args=(os.getpid(),), daemon=True) for _ in range(int(words[0]))
    ]
    for loop in loops:
        loop.start()
    try:
        return subprocess.call(words[1:])
    finally:
        for loop in loops:
            loop.kill()


def _loop(parent: int) -> None:
    while os.getppid() == parent:
        sum(range(100_000))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
