"""ms-swift's sequence parallelism: an evaluation counts a rank's own part of a row.

python reproduce.py      # 1 where the loss of a row on two ranks is another, 0 where it is right; no GPU

Every token is as likely as any other here, so the loss is the logarithm of their number.
"""

import math
import os
import socket
import sys
from types import SimpleNamespace

import swift
import torch
import torch.distributed as dist
import transformers
from swift.sequence_parallel import sequence_parallel
from swift.trainers import Seq2SeqTrainer
from transformers import Trainer

VOCABULARY, LENGTH, PROMPT = 64, 16, 4


def evaluated(rank: int, port: int, found: object) -> None:
    """The loss of one row, as ``prediction_step`` computes it."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo")
    sequence_parallel.world_size, sequence_parallel.dp_world_size = 2, 1
    sequence_parallel.sp_world_size, sequence_parallel.rp_world_size = 2, 1
    sequence_parallel.device_mesh = dist.init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "sequence"))
    sequence_parallel.tokenizer = SimpleNamespace(pad_token_id=0)
    trainer = Seq2SeqTrainer.__new__(Seq2SeqTrainer)  # as much of one as evaluates
    trainer.model = torch.nn.Module().eval()
    trainer.model.model_info = SimpleNamespace(is_moe_model=False)
    trainer.model_accepts_loss_kwargs, trainer.compute_loss_func, trainer.label_smoother = True, None, None
    trainer._loss_shifts_labels = True
    trainer.accelerator = SimpleNamespace(
        unwrap_model=lambda model: model, num_processes=2, parallelism_config=None
    )
    trainer.template = SimpleNamespace(
        sequence_parallel_size=2,
        padding_free=False,
        get_base_model=lambda model: model,
        compute_sft_loss=lambda *args, **more: SimpleNamespace(
            logits=torch.zeros(1, LENGTH // 2, VOCABULARY), aux_loss=None
        ),
    )
    trainer.args = SimpleNamespace(
        average_tokens_across_devices=False,
        world_size=2,
        n_gpu=1,
        enable_dft_loss=False,
        enable_channel_loss=False,
        use_liger_kernel=False,
        use_logits_to_keep=False,
        tuner_backend="peft",
        router_aux_loss_coef=None,
        acc_strategy="token",
    )
    trainer._compute_acc = lambda *args, **more: None
    trainer.get_tp_size = trainer.get_cp_size = trainer.get_sp_size = lambda: 1
    Trainer._prepare_inputs = lambda self, inputs: inputs
    labels = torch.arange(LENGTH)[None].clone()
    labels[:, :PROMPT] = -100
    places = torch.arange(LENGTH)[None]
    batch = {"input_ids": torch.arange(LENGTH)[None], "labels": labels, "position_ids": places}
    inputs = trainer._prepare_inputs(batch)
    count = trainer._get_num_items_in_batch([inputs], torch.device("cpu"))
    found[rank] = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=count).item()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    print(f"ms-swift {swift.__version__}, transformers {transformers.__version__}")
    found = torch.zeros(2).share_memory_()
    torch.multiprocessing.start_processes(evaluated, (port, found), nprocs=2, start_method="fork")
    losses = found.tolist()
    right = math.log(VOCABULARY)
    print(f"loss of the row: {right:.2f}, as its ranks evaluate it: {losses[0]:.2f} and {losses[1]:.2f}")
    sys.exit(max(abs(loss - right) for loss in losses) > 0.01)
