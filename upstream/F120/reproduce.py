"""GRPO and RLOO: a rank without an image does not gather those of the batch, and the other ranks wait for it.

    python reproduce.py      # 1 where the step does not end on both ranks, 0 where it does; two ranks, no GPU

Plain DDP. The rows of a data set have a list of images each; every other list is empty.
"""

import multiprocessing
import os
import socket
import sys
import tempfile

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

import datasets
import torch
import transformers
import trl
from PIL import Image
from tokenizers import pre_tokenizers
from transformers import Qwen2Tokenizer, Qwen2VLConfig, Qwen2VLForConditionalGeneration

LIMIT = 30  # seconds; the step takes two
TOKENS = ["<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
VOCABULARY = {token: n for n, token in enumerate([*TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
IDS = {name: VOCABULARY[f"<|{name}|>"] for name in ("vision_start", "vision_end")}
IDS |= {"image": VOCABULARY["<|image_pad|>"], "video": VOCABULARY["<|video_pad|>"]}
CHAT = (
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for c in m['content'] %}{% if c['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)


def processor() -> transformers.Qwen2VLProcessor:
    tokenizer = Qwen2Tokenizer(
        vocab=VOCABULARY, merges=[], extra_special_tokens=TOKENS[1:], padding_side="left"
    )
    images = transformers.Qwen2VLImageProcessor(size={"shortest_edge": 28 * 28, "longest_edge": 56 * 56})
    videos = transformers.Qwen2VLVideoProcessor()
    return transformers.Qwen2VLProcessor(images, tokenizer, videos, chat_template=CHAT)


def model() -> Qwen2VLForConditionalGeneration:
    text = {
        "vocab_size": len(VOCABULARY), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "bos_token_id": 0, "eos_token_id": 0,
        "pad_token_id": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
    }  # fmt: skip
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 4}
    tokens = {f"{name}_token_id": value for name, value in IDS.items()}
    return Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=text, vision_config=vision, **tokens))


def train(rank: int, port: int, folder: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    transformers.set_seed(0)
    prompt = [{"role": "user", "content": "describe"}]
    rows = [{"prompt": prompt, "images": [Image.new("RGB", (56, 56))] * (n % 2)} for n in range(4)]
    settings = trl.GRPOConfig(
        output_dir=folder, max_steps=1, per_device_train_batch_size=2, num_generations=2,
        max_completion_length=4, shuffle_dataset=False, report_to="none", save_strategy="no", bf16=False,
        gradient_checkpointing=False, use_cpu=True, ddp_backend="gloo", ddp_timeout=LIMIT,
        ddp_find_unused_parameters=True, disable_tqdm=True,
        generation_kwargs={"suppress_tokens": [*range(len(TOKENS))]},
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        model=model(),
        reward_funcs=lambda completion_ids, **columns: [float(sum(ids) % 97) for ids in completion_ids],
        args=settings,
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=processor(),
    )
    try:
        trainer.train()
    except RuntimeError:  # the other rank was ended; NCCL waits
        sys.exit(1)
    torch.distributed.destroy_process_group()


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
context = multiprocessing.get_context("fork")
with tempfile.TemporaryDirectory() as folder:
    ranks = [context.Process(target=train, args=(rank, port, folder)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(LIMIT)
        process.kill()
        process.join()
ended = not any(process.exitcode for process in ranks)
print(f"trl {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}")
print(f"the step {'ends' if ended else 'does not end'} on both ranks")
sys.exit(not ended)
