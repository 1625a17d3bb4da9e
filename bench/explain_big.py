"""A log of 1 GB, many ranks interleaved: time and memory of ``explain``, beside ``grep``.

``python -m bench.explain_big [MEGABYTES]``
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CAUSE = """Traceback (most recent call last):
  File "/job/finetune.py", line 301, in train
    trainer.train()
  File "/env/lib/python3.11/site-packages/transformers/trainer.py", line 3740, in training_step
    self.accelerator.backward(loss, **kwargs)
RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following
"""


def write(path: Path, megabytes: int, noisy: bool) -> None:
    """A log as 16 ranks print it; the cause in its last tenth, the other ranks' echoes behind it."""
    rng = random.Random(7)
    block = bytearray()
    while len(block) < 4 << 20:
        rank, step = rng.randrange(16), rng.randrange(100_000)
        block += (
            f"[rank{rank}]: 2026-11-22 10:00:{step % 60:02},123 - INFO - module.block.{step} reduced, "
            f"bucket of {rng.randrange(10**9)} elements in {rng.random():.6f} s\n"
            f"{{'loss': {rng.random():.4f}, 'grad_norm': {rng.random():.4f}, 'epoch': {step / 1e5:.4f}}}\n"
            f"\r {step % 100}%|████      | {step}/100000 [1:02:03<4:05:06,  2.88s/it]"
        ).encode()
        if noisy:
            block += f"[rank{rank}]: ValueError: sample {step} has no image, skipped\n".encode()
    with path.open("wb") as handle:
        for number in range(max(1, megabytes // 4)):
            handle.write(block)
            if number == max(1, megabytes // 4) * 9 // 10:
                handle.write(b"".join(b"[rank11]: " + line.encode() for line in CAUSE.splitlines(True)))
        for rank in range(16):
            handle.write(f"[rank{rank}]: RuntimeError: Connection reset by peer\n".encode())


def timed(command: list[str]) -> tuple[float, int, str]:
    """Seconds of a command, the most memory of any command so far in MB, and its output."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
    took = time.perf_counter() - start
    return took, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10, done.stdout


def main(megabytes: int) -> None:
    """Write both logs and print a line each."""
    for noisy in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "train.log"
            write(log, megabytes, noisy)
            grep, _, _ = timed(["grep", "-c", "ready only once", str(log)])
            ours, memory, said = timed([sys.executable, "-m", "vlmpatch", "explain", str(log)])
            print(
                f"{log.stat().st_size >> 20} MB{', an error on every fourth line' if noisy else ''}: "
                f"explain {ours:.1f} s, {memory} MB; grep {grep:.1f} s; {said.splitlines()[0]}",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1024)
