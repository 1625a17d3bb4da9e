"""``doctor`` beside what others print about an environment: ``PYTHON -m bench.doctor``, PYTHON of a stack.

Seconds of the processor, not of the clock, so that a busy machine does not matter; the best of three.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent
COMMANDS = {
    "python -m vlmpatch doctor": [sys.executable, "-m", "vlmpatch", "doctor"],
    "ds_report": [str(BIN / "ds_report")],
    "transformers env": [str(BIN / "transformers"), "env"],
    "accelerate env": [str(BIN / "accelerate"), "env"],
    "python -m torch.utils.collect_env": [sys.executable, "-m", "torch.utils.collect_env"],
}


def seconds(command: list[str]) -> float | None:
    """Processor time of ``command`` and all below it; None where there is no such command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(command, capture_output=True, env={**os.environ, "DS_ACCELERATOR": "cpu"})
    except OSError:
        return None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent if done.returncode in (0, 1) else None


def main() -> None:
    """A line for each."""
    for name, command in COMMANDS.items():
        taken = [spent for spent in (seconds(command) for _ in range(3)) if spent is not None]
        print(f"{name:36}{f'{min(taken):.2f} s' if taken else 'not here'}", flush=True)


if __name__ == "__main__":
    main()
