"""Under sequence parallelism the Trainer's loss of Qwen2-Audio is that of labels shifted twice.

    python reproduce.py      # 1 where it is, 0 where it is that of the labels; one process, no GPU

DeepSpeed's data adapter shifts the labels; the Trainer hands them to the model in a group of one rank here.
"""

import sys
from types import SimpleNamespace

import torch
import transformers
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from transformers import Qwen2AudioConfig, Qwen2AudioForConditionalGeneration
from transformers.integrations.deepspeed import deepspeed_sp_compute_loss

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
text = {
    "model_type": "qwen2", "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
}  # fmt: skip
audio = {"d_model": 64, "encoder_layers": 1, "encoder_attention_heads": 4, "encoder_ffn_dim": 64}
model = Qwen2AudioForConditionalGeneration(
    Qwen2AudioConfig(text_config=text, audio_config=audio, audio_token_index=63)
)
ids = torch.randint(0, 60, (1, 16))
shifted = torch.nn.functional.pad(ids, (0, 1), value=-100)[:, 1:]
right = float(torch.nn.functional.cross_entropy(model(input_ids=ids).logits[0], shifted[0]))
found = deepspeed_sp_compute_loss(
    accelerator=SimpleNamespace(torch_device_mesh=init_device_mesh("cpu", (1,), mesh_dim_names=("sp",))),
    model=model,
    inputs={"input_ids": ids, "shift_labels": shifted},
    return_outputs=False,
    pc=SimpleNamespace(sp_backend="deepspeed", sp_size=1),
)
print(f"transformers {transformers.__version__}")
print(f"loss {float(found):.4f}; that of the labels is {right:.4f}")
distributed.destroy_process_group()
sys.exit(abs(float(found) - right) > 1e-4)
