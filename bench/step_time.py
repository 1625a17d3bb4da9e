"""A training step with vlmpatch beside the same step with the flags set by hand.

``python -m bench.step_time CHECKPOINT [STEPS]`` in an environment with torch and transformers;
CHECKPOINT is a Qwen2-VL folder (``tests.lab.checkpoints`` makes one). The two models of the comparison live
in two processes that take turns, because vlmpatch is a property of a process. Printed: the ratio of
the median step times, and the Python calls of one step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from bench.python_calls import python_calls


def training_step(folder: str, patched: bool) -> Any:
    """A function that runs one forward and backward of the checkpoint in ``folder``."""
    if patched:
        import vlmpatch  # noqa: F401
    import torch
    from transformers import AutoConfig, Qwen2VLForConditionalGeneration

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder)
    model = Qwen2VLForConditionalGeneration.from_pretrained(folder).train()
    by_hand = {} if patched else {"gradient_checkpointing_kwargs": {"use_reentrant": False}}
    model.gradient_checkpointing_enable(**by_hand)
    image = [config.vision_start_token_id, *[config.image_token_id] * 4]
    ids = torch.tensor([[*image, *range(20, 60)]])
    kinds = (ids == config.image_token_id).int()
    inputs = {
        "input_ids": ids,
        "labels": ids,
        "pixel_values": torch.randn(16, 1176),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
    }
    if int(__import__("transformers").__version__.split(".")[0]) >= 5:
        inputs["mm_token_type_ids"] = kinds

    def step() -> None:
        model.zero_grad()
        model(**inputs).loss.backward()

    return step


def serve(folder: str, patched: bool) -> None:
    """The child: one line out per line in, the seconds of one step or its number of calls."""
    step = training_step(folder, patched)
    for _ in range(3):
        step()
    for line in sys.stdin:
        if line.strip() == "calls":
            print(json.dumps(python_calls(step)), flush=True)
        else:
            started = time.perf_counter()
            step()
            print(json.dumps(time.perf_counter() - started), flush=True)


class Child:
    def __init__(self, folder: str, patched: bool) -> None:
        command = [sys.executable, "-m", "bench.step_time", folder, "--serve", str(int(patched))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: str) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        answer: float = json.loads(self.process.stdout.readline())
        return answer

    def end(self) -> None:
        self.process.communicate(timeout=60)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("steps", nargs="?", type=int, default=100)
    parser.add_argument("--serve", type=int)
    asked = parser.parse_args()
    if asked.serve is not None:
        serve(asked.checkpoint, bool(asked.serve))
        return
    by_hand, patched = Child(asked.checkpoint, False), Child(asked.checkpoint, True)
    pairs = []
    for number in range(asked.steps):
        # What goes first after a pause pays for cold caches: take turns at that too.
        first, second = (by_hand, patched) if number % 2 else (patched, by_hand)
        times = (first.ask("step"), second.ask("step"))
        pairs.append(times if number % 2 else times[::-1])
    one, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"step: {one * 1e3:.2f} ms by hand, {other * 1e3:.2f} ms with vlmpatch (medians of {asked.steps})")
    print(f"ratio: {statistics.median(b / a for a, b in pairs):.3f} (median of the pairs)")
    calls = by_hand.ask("calls"), patched.ask("calls")
    print(f"Python calls in a step: {calls[0]:.0f} by hand, {calls[1]:.0f} with vlmpatch")
    by_hand.end()
    patched.end()


if __name__ == "__main__":
    main()
