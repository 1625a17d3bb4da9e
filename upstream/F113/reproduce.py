"""HF Trainer, FSDP1: ``train()`` after ``evaluate()`` trains the model without FSDP's wrapper.

python reproduce.py      # 1 where it ends in an error, 0 where it trains; two processes, no GPU
"""

import multiprocessing
import os
import socket
import sys
import tempfile

import torch
import transformers
from accelerate import state


def begin(rank: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    os.environ |= {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"}
    # accelerate shards on accelerators alone; FSDP itself runs on a CPU as well.
    state.PartialState._prepare_backend = lambda *_: ("gloo", state.DistributedType.MULTI_GPU)
    state.PartialState.set_device = lambda self: setattr(self, "device", torch.device("cpu"))


def train(rank: int, port: int, folder: str, said) -> None:
    begin(rank, port)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 32}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(4)]
    sharded = {"fsdp": "full_shard auto_wrap", "fsdp_config": {"version": 1, "sync_module_states": False}}
    settings = {"max_steps": 1, "per_device_train_batch_size": 1, "optim": "sgd", "save_strategy": "no"}
    arguments = transformers.TrainingArguments(folder, **settings, **sharded, report_to=[])
    model = transformers.LlamaForCausalLM(config)
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)
    trainer.evaluate()
    error = "nothing"
    try:
        trainer.train()
    except Exception as ended:
        error = f"{type(ended).__name__}: {ended}"
    if rank == 0:
        said.put(error)


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
context = multiprocessing.get_context("fork")
said = context.SimpleQueue()
with tempfile.TemporaryDirectory() as folder:
    ranks = [context.Process(target=train, args=(rank, port, folder, said)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
error = said.get()
print(f"transformers {transformers.__version__}\nerror: {error}")
sys.exit(error != "nothing")
