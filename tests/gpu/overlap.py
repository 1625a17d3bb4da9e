"""What ZeRO-2 reads for its reductions with ``overlap_comm``, on a GPU's real streams. Runs in one process.

    python -m tests.gpu.overlap large|buckets RANKS [--patched]

The last of RANKS ranks trains; the others are torch's fake process group, whose collectives return at once.
Every reduction is made slow, as a network is, and what it has read by then is kept. The same gradients are
read with ``overlap_comm`` off: a reduction that reads anything else has been overtaken by the backward.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

if "--patched" in sys.argv:
    import vlmpatch  # noqa: F401

import deepspeed
import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

SIDE, LAYERS, STEPS = 2048, 10, 3
CYCLES = 40_000_000  # of the GPU's clock, about 20 ms
BUCKETS = {"large": SIDE * SIDE // 2, "buckets": 2 * SIDE * SIDE + 1}  # elements


def join(ranks: int) -> None:
    """Be the last of ``ranks`` ranks."""
    rank = ranks - 1
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False, verbose=False)


def slow_reductions(read: list[torch.Tensor]) -> None:
    """Make every reduction wait, then keep what it reads; on the stream on which it was asked for."""

    def slow(original: Any) -> Any:
        def reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if tensor.is_cuda and tensor.numel() > 1:  # a norm is reduced as well
                torch.cuda._sleep(CYCLES)
                read.append(tensor.clone())
            return original(tensor, *args, **kwargs)

        return reduce

    for name in ("reduce", "all_reduce"):
        setattr(deepspeed.comm, name, slow(getattr(deepspeed.comm, name)))


def train(bucket: int, overlap: bool) -> None:
    """A few steps whose learning rate is 0, so that every step's gradients are the same."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS))).cuda()
    inputs = torch.randn(64, SIDE, device="cuda")
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 2, "overlap_comm": overlap, "reduce_bucket_size": bucket},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=optimizer)
    for _ in range(STEPS):
        engine.backward(engine(inputs).square().mean())
        engine.step()
    torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.overlap")
    parser.add_argument("setting", choices=BUCKETS)
    parser.add_argument("ranks", type=int)
    parser.add_argument("--patched", action="store_true")
    asked = parser.parse_args()
    read: list[torch.Tensor] = []
    join(asked.ranks)
    slow_reductions(read)
    bucket = BUCKETS[asked.setting]
    train(bucket, overlap=False)
    wanted = [*read]
    read.clear()
    train(bucket, overlap=True)
    if [each.numel() for each in read] != [each.numel() for each in wanted]:
        raise RuntimeError("with overlap_comm other tensors are reduced than without")
    wrong = sum(not torch.equal(one, two) for one, two in zip(read, wanted, strict=True))
    print(json.dumps({"reductions": len(read), "wrong": wrong}))


if __name__ == "__main__":
    main()
