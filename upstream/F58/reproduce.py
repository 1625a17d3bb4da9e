"""Selective checkpointing under ZeRO-3: the recompute adds the bias of a linear layer a second time.

    python reproduce.py      # 1 where it does, 0 where not; one process, no GPU

The policy keeps matrix products. Compared with torch's own linear; inside ``zero.Init``, and in an engine,
``torch.nn.functional.linear`` is DeepSpeed's.
"""

import functools
import os
import sys

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import torch
from deepspeed.runtime.zero.linear import zero3_linear_wrap
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


def kept(_context, operation, *args, **kwargs):
    product = operation == torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if product else CheckpointPolicy.PREFER_RECOMPUTE


def gradient(linear) -> torch.Tensor:
    x = torch.ones(2, 3, 8)
    after = torch.ones(8, requires_grad=True)

    def block(x: torch.Tensor) -> torch.Tensor:
        return linear(x, weight, bias).sin() * after

    contexts = functools.partial(create_selective_checkpoint_contexts, kept)
    checkpoint(block, x, use_reentrant=False, context_fn=contexts).sum().backward()
    return after.grad


torch.manual_seed(0)
weight, bias = torch.randn(8, 8, requires_grad=True), torch.randn(8, requires_grad=True)
right, got = gradient(torch.nn.functional.linear), gradient(zero3_linear_wrap)
off = float((got - right).norm() / right.norm())
print(f"deepspeed {deepspeed.__version__}\nthe gradient after the layer is {off:.0%} off")
sys.exit(off > 1e-5)
