"""What VLMPATCH_WATCH costs: the watched steps, and those after them, beside steps nobody watches.

    python -m bench.watch_cost [--size small] [--steps 30] [--device cpu]

in an environment with torch, transformers and peft. One process, Qwen2-VL with LoRA and checkpointing;
watched and unwatched steps take turns, so that both see the same machine. On a CPU one thread's own time
is measured, which other programs do not lengthen.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import vlmpatch  # noqa: F401
from vlmpatch.watch.watcher import STEPS, Watcher


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.watch_cost")
    parser.add_argument("--size", default="small")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    model, step = training(asked.size, asked.device)
    for _ in range(3):
        step()
    first, later, plain, after = [], [], [], []
    for _ in range(asked.steps):
        plain.append(timed(step, asked.device))
        watcher = Watcher(model)
        times = [timed(watched(watcher, step), asked.device) for _ in range(STEPS)]
        first.append(times[0])
        later += times[1:]
        after.append(timed(step, asked.device))
        if found := watcher.findings([watcher.report()]) + watcher.own:
            raise SystemExit(f"the watch found something: {found}")
    usual = statistics.median(plain)
    print(f"step: {usual * 1e3:.1f} ms (medians of {asked.steps})")
    for name, seconds in (("first watched step", first), ("each of the next two", later), ("after", after)):
        print(f"{name}: {statistics.median(seconds) / usual:.2f} x")


def training(size: str, device: str) -> tuple[Any, Callable[[], None]]:
    import peft
    import torch

    from vlmpatch_lab import models

    torch.set_num_threads(1)
    torch.manual_seed(0)
    targets = ["q_proj", "v_proj", "up_proj", "qkv", "fc1"]
    base = models.qwen("qwen2_vl", size, device)
    model: Any = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=targets)).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    batch = {name: value.to(device) for name, value in models.batch(size, 64, seed=0).items()}

    def step() -> None:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def timed(function: Callable[[], object], device: str) -> float:
    from vlmpatch_lab.meters import synchronize

    clock = time.process_time if device == "cpu" else time.perf_counter
    synchronize()
    began = clock()
    function()
    synchronize()
    return clock() - began


def watched(watcher: Watcher, step: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        step()
        watcher.step_ended()

    return both


if __name__ == "__main__":
    main()
