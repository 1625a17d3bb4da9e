"""The routers' loss under ``use_reentrant=True``: whether it trains the routers.

python reproduce.py      # 1 where gradients differ from those without checkpointing, 0 where not; no GPU
"""

import copy
import sys

import torch
import transformers
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

torch.manual_seed(0)
experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
config = Qwen3MoeConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=97,
    output_router_logits=True,
    router_aux_loss_coef=0.5,
    **experts,
)
model = Qwen3MoeForCausalLM(config).train()
ids = torch.randint(3, 90, (2, 9))


def gradients(**checkpointing: bool) -> torch.Tensor:
    net = copy.deepcopy(model)
    if checkpointing:
        net.gradient_checkpointing_enable(checkpointing)
    net(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    routers = (p.grad for name, p in net.named_parameters() if name.endswith("mlp.gate.weight"))
    return torch.cat([gradient.flatten() for gradient in routers])


print(f"transformers {transformers.__version__}")
right, off = gradients(), {}
for reentrant in (False, True):
    got = gradients(use_reentrant=reentrant)
    off[reentrant] = float((got - right).norm() / right.norm())
    print(f"use_reentrant={reentrant}: the routers' gradients are {off[reentrant]:.1e} off")
sys.exit(max(off.values()) > 1e-4)
