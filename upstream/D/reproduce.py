"""A model of remote code without ``GenerationMixin`` gets no LoRA with ``task_type="CAUSAL_LM"``.

python reproduce.py      # 1 where get_peft_model fails, 0 where the adapter trains; one process, no GPU
"""

import sys

import peft
import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel


class Remote(PreTrainedModel):
    """As MiniCPM-V's, which leaves ``generate`` to the language model inside it."""

    config_class = PreTrainedConfig

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.projection = torch.nn.Linear(8, 8)
        self.post_init()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.projection(x)


print(f"peft {peft.__version__}, transformers {transformers.__version__}")
lora = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["projection"], init_lora_weights=False)
try:
    model = peft.get_peft_model(Remote(PreTrainedConfig()), lora)
except AttributeError as error:
    print(f"AttributeError: {error}")
    sys.exit(1)
model.get_base_model()(torch.ones(1, 8)).sum().backward()
without = sum(parameter.grad is None for parameter in model.parameters() if parameter.requires_grad)
print(f"adapter weights without a gradient: {without}")
sys.exit(without > 0)
