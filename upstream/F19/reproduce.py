"""The Trainer ends in DDP's "Expected to have finished reduction" because checkpointing is on.

    python reproduce.py      # 1 where it does, 0 where not; two processes, no GPU

LLaVA takes the features of the last layer but one, so the last layer of its tower gets no gradient. Without
checkpointing the Trainer lets DDP search for such parameters; with it, it does not.
"""

import multiprocessing
import os
import socket
import sys
import tempfile

import torch
import transformers
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration


def train(rank: int, port: int, said) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = CLIPVisionConfig(**sizes, image_size=28, patch_size=14)
    config = LlavaConfig(
        vision_config=vision, text_config=LlamaConfig(vocab_size=97, **sizes), image_token_index=96
    )
    ids = torch.tensor([5, 96, 96, 96, 96, 7])  # four patches
    sample = {"input_ids": ids, "labels": ids, "pixel_values": torch.randn(3, 28, 28)}
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, use_cpu=True, report_to="none", gradient_checkpointing=True,
            per_device_train_batch_size=1, max_steps=3, save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = transformers.Trainer(
            LlavaForConditionalGeneration(config), arguments, train_dataset=[sample] * 8
        )
        try:
            trainer.train()
        except Exception as error:
            said.put(str(error).partition(".")[0])
        else:
            said.put("nothing")


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
said = multiprocessing.get_context("fork").SimpleQueue()
ranks = [
    multiprocessing.get_context("fork").Process(target=train, args=(rank, port, said)) for rank in (0, 1)
]
for process in ranks:
    process.start()
for process in ranks:
    process.join()
errors = {said.get() for _ in ranks}
print(f"transformers {transformers.__version__}\nerror: {', '.join(sorted(errors))}")
sys.exit(errors != {"nothing"})
