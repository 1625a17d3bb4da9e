"""A tower that two ZeRO-2 engines share: DeepSpeed does not support it, and prints how it ends."""

from __future__ import annotations

import importlib
import logging
import sys
import warnings


def main() -> None:
    if "--patched" in sys.argv:
        import vlmpatch  # noqa: F401
    from vlmpatch_lab import engines, ports, ranks

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    engines.preload_engine()
    with ranks.process_group(0, ports.free_port(), world=1):
        engines.answer_for_cpu()
        try:
            train()
        except AssertionError as error:
            print(f"ended: {error.__cause__ or error}", flush=True)


def train() -> None:
    """A step of each engine, in turns."""
    import torch

    deepspeed = importlib.import_module("deepspeed")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    tower = torch.nn.Linear(4, 4)
    models = [torch.nn.Sequential(tower, torch.nn.Linear(4, 2)) for _ in range(2)]
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_allow_untested_optimizer": True,
    }
    made = [
        deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)[0]
        for model in models
    ]
    for _ in range(2):
        for engine in made:
            engine.backward(engine(torch.ones(1, 4)).pow(2).mean())
            engine.step()


if __name__ == "__main__":
    main()
