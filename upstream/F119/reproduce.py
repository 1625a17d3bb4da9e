"""A vision-language model's head is a unit of its own under FSDP2, a text model's shares that of its norm.

python reproduce.py      # 1 where a head that is read is still sharded, 0 where none is; one process, no GPU
"""

import sys
from types import SimpleNamespace

import accelerate
import torch
import transformers
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from torch import distributed
from torch.distributed.tensor import DTensor
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2VLConfig, Qwen2VLForConditionalGeneration

text = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
vision = {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2}
ids = torch.ones(1, 4, dtype=torch.long)

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
print(f"accelerate {accelerate.__version__}, transformers {transformers.__version__}")


def shard(model):
    """As the Accelerator does with `fsdp_version=2`, which a CPU alone does not let it do."""
    plugin = SimpleNamespace(
        set_auto_wrap_policy=lambda model: None, auto_wrap_policy=None, ignored_modules=None,
        cpu_offload=None, reshard_after_forward=True, mixed_precision_policy=None,
        cpu_ram_efficient_loading=False,
    )  # fmt: skip
    return fsdp2_prepare_model(
        SimpleNamespace(
            state=SimpleNamespace(fsdp_plugin=plugin), mixed_precision="no", is_main_process=True,
            torch_device_mesh=distributed.device_mesh.init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",)),
            parallelism_config=SimpleNamespace(fsdp_dim_names=("fsdp",)), device=torch.device("cpu"),
        ),
        model,
    )  # fmt: skip


sharded = []
for model in (
    Qwen2ForCausalLM(Qwen2Config(**text)),
    Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(text_config={**text, "rope_parameters": rope}, vision_config=vision)
    ),
):

    def read(input_ids, model=model):
        """As a fused loss does, which multiplies by the head's weight itself."""
        model.model(input_ids=input_ids)
        weight = model.get_output_embeddings().weight
        kind = "DTensor" if isinstance(weight, DTensor) else "Parameter"
        print(f"{type(model).__bases__[-1].__name__}: the head's weight is a {kind} when the norm has run")
        sharded.append(isinstance(weight, DTensor))

    model.forward = read
    shard(model)(input_ids=ids)
distributed.destroy_process_group()
sys.exit(any(sharded))
