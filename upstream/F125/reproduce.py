"""Activation checkpointing under FSDP2 computes a layer again with another dropout mask.

python reproduce.py      # 1 where the gradients are others than without it, 0 where not; one process, no GPU
"""

import functools
import sys
from types import SimpleNamespace

import accelerate
import torch
from accelerate.utils.fsdp_utils import fsdp2_apply_ac
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

print(f"accelerate {accelerate.__version__}, torch {torch.__version__}")


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 64)
        )

    def forward(self, x):
        return self.inner(x)


torch.manual_seed(0)
model = torch.nn.Sequential(Layer(), Layer())
x = torch.randn(4, 64)


def gradient():
    """That of the first weight, with the same random numbers each time."""
    torch.manual_seed(1)
    model.zero_grad()
    model(x).square().sum().backward()
    return next(model.parameters()).grad.clone()


right = gradient()
plugin = SimpleNamespace(
    auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Layer}),
    transformer_cls_names_to_wrap=["Layer"],
    activation_checkpointing_offload=False,
)
model = fsdp2_apply_ac(SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)), model)
off = ((gradient() - right).abs().max() / right.abs().max()).item()
print(f"the gradient is off by {off:.1f} of its largest entry")
sys.exit(off > 1e-5)
