"""What a stack's own imports cost with vlmpatch, beside the same imports without it.

``python -m bench.stack_import [STACK …] [--runs N]``: CPU seconds (user + system) of importing
``transformers.trainer``, ``deepspeed``, ``peft`` and Qwen2-VL's modelling file, bare and patched in turn, so
that a machine that slows down slows both. The ratio is the median of the pairs'. On a machine that others use
too it moves by more than vlmpatch costs; "inside", the CPU time that one import spends in vlmpatch over the
rest of the same import (``stack_import_inside``), is steadier. What the stack imports of the standard library
and of packaging without vlmpatch as well is there beforehand: the first to import it would pay for it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence

from bench.stack_import_inside import MODULES
from tests.lab import envs, launch
from tests.lab.envs import Stack

STACKS = ("tf445-ds0154", "tf457-ds0182", "tf523-ds0198")
IMPORTS = (
    f"import {', '.join(MODULES)}\n"
    "import os, sys; used = os.times(); print('CPU', used.user + used.system, 'vlmpatch' in sys.modules)\n"
)


def cpu_seconds(stack: Stack, environ: Mapping[str, str], patched: bool) -> float:
    """CPU time of one interpreter that makes the imports."""
    code = ("import vlmpatch\n" if patched else "") + IMPORTS
    done = subprocess.run(
        [stack.python, "-c", code], env=environ, capture_output=True, text=True, timeout=300, check=True
    )
    words = done.stdout.rpartition("CPU ")[2].split()
    assert words[1] == str(patched), done.stdout
    return float(words[0])


def common(stack: Stack, environ: Mapping[str, str]) -> list[str]:
    """What the stack imports without vlmpatch of modules that vlmpatch may use."""
    told = "print('MODULES', *(name for name in sys.modules if name.partition('.')[0] in known))"
    code = f"{IMPORTS}known = {{*sys.stdlib_module_names, 'packaging'}}; {told}"
    done = subprocess.run(
        [stack.python, "-c", code], env=environ, capture_output=True, text=True, timeout=300, check=True
    )
    return done.stdout.rpartition("MODULES ")[2].split()


def share(stack: Stack, environ: Mapping[str, str], beforehand: Sequence[str]) -> float:
    """What one import spends in vlmpatch, over the rest of it."""
    done = subprocess.run(
        [stack.python, "-m", "bench.stack_import_inside", *beforehand],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    spent, used = map(float, done.stdout.rpartition("INSIDE ")[2].split())
    return spent / (used - spent)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.stack_import")
    parser.add_argument("stacks", nargs="*", default=STACKS)
    parser.add_argument("--runs", type=int, default=10)
    asked = parser.parse_args()
    known = envs.read_stacks()
    for name in asked.stacks:
        stack = known[name]
        envs.make(stack)
        environ = {**os.environ, **launch.environment(stack)}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every start measures the compiler
        for patched in (False, True):
            cpu_seconds(stack, environ, patched)  # the first pair writes byte code
        pairs = [
            (cpu_seconds(stack, environ, False), cpu_seconds(stack, environ, True)) for _ in range(asked.runs)
        ]
        bare, with_it = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        beforehand = common(stack, environ)
        inside = statistics.median(share(stack, environ, beforehand) for _ in range(asked.runs))
        times = f"bare {bare:.2f} s, with vlmpatch {with_it:.2f} s"
        print(f"{name:16} {times}, ratio {ratio:.3f}, inside {inside:.3f}", flush=True)


if __name__ == "__main__":
    main()
