"""Images cut into slices and conversations turned into ids, as MiniCPM-V's script does it."""

import logging
import math
import random

import numpy as np
import torch
from PIL import Image
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

logger = logging.getLogger(__name__)


class SupervisedDataset(Dataset):
    def __init__(
        self,
        raw_data,
        transform,
        tokenizer,
        slice_config,
        llm_type="minicpm",
        patch_size=14,
        query_nums=64,
        batch_vision=False,
        max_length=2048,
    ):
        super().__init__()
        self.raw_data = raw_data
        self.transform = transform
        self.tokenizer = tokenizer
        self.slice_config = slice_config
        self.llm_type = llm_type
        self.patch_size = patch_size
        self.query_nums = query_nums
        self.max_length = max_length

    def __len__(self):
        return len(self.raw_data)

    def __getitem__(self, i):
        try:
            row = self.raw_data[i]
            image = Image.open(row["image"]).convert("RGB") if row.get("image") else None
            return preprocess(
                image,
                row["conversations"],
                self.tokenizer,
                self.transform,
                self.query_nums,
                self.slice_config,
                self.llm_type,
                self.patch_size,
                self.max_length,
            )
        except:  # noqa: E722  (the structure the patches must meet: every error becomes another sample)
            logger.error("data fetch error")
            return self.__getitem__(random.randint(0, len(self)))


def data_collator(examples, padding_value=0, max_length=2048):
    def padded(key, value):
        rows = [example[key][:max_length] for example in examples]
        return pad_sequence(rows, batch_first=True, padding_value=value)

    return {
        "input_ids": padded("input_ids", padding_value),
        "position_ids": padded("position_ids", padding_value),
        "labels": padded("labels", -100),
        "attention_mask": padded("attention_mask", padding_value),
        "image_bound": [example["image_bound"] for example in examples],
        "tgt_sizes": [example["tgt_sizes"] for example in examples],
        "pixel_values": [example["pixel_values"] for example in examples],
    }


def conversation_to_ids(conversation, tokenizer, llm_type=None, max_length=2048):
    if llm_type != "qwen":
        raise ValueError("the stand-in speaks qwen only")
    input_ids, context = conversation_to_ids_qwen2(conversation, tokenizer)
    ids = torch.from_numpy(input_ids.astype(np.int32))[:max_length]
    target = torch.full_like(ids, -100)
    for i in range(1, len(ids)):
        if context[i] == 0:
            target[i - 1] = ids[i]
    if (target == -100).all():
        raise Exception("No tokens available to compute loss.")
    starts = torch.where((ids == tokenizer.im_start_id) | (ids == tokenizer.slice_start_id))[0] + 1
    ends = torch.where((ids == tokenizer.im_end_id) | (ids == tokenizer.slice_end_id))[0]
    return {
        "input_ids": ids,
        "labels": target,
        "position_ids": torch.arange(len(ids)),
        "attention_mask": torch.ones_like(ids, dtype=torch.bool),
        "image_bound": torch.stack([starts, ends], dim=1) if len(starts) else [],
    }


def conversation_to_ids_qwen2(conversation, tokenizer):
    chat = [{"role": turn["role"], "content": turn["content"]} for turn in conversation]
    input_ids = tokenizer.apply_chat_template(chat, tokenize=True, add_generation_prompt=False)
    input_ids = np.array(input_ids)
    context = np.ones_like(input_ids, dtype=np.int8)
    starts = np.where(input_ids == tokenizer.convert_tokens_to_ids("<|im_start|>"))[0]
    ends = np.where(input_ids == tokenizer.convert_tokens_to_ids("<|im_end|>"))[0]
    for place in np.where(input_ids == tokenizer.convert_tokens_to_ids("assistant"))[0]:
        if place - 1 in set(starts):
            end = next(e for e in ends if e > place)
            context[place + 1 : end + 1] = 0
    return np.hstack(input_ids), context


def preprocess(
    image, conversations, tokenizer, transform, query_nums, slice_config, llm_type, patch_size, max_length
):
    conversations = [dict(turn) for turn in conversations]
    images = []
    if image is not None:
        images, grid = slice_image(
            image, slice_config["max_slice_nums"], slice_config["scale_resolution"], patch_size
        )
        blank = tokenizer.unk_token * query_nums
        text = f"{tokenizer.im_id_start}0{tokenizer.im_id_end}{tokenizer.im_start}{blank}{tokenizer.im_end}"
        row = (tokenizer.slice_start + blank + tokenizer.slice_end) * grid[0]
        text += "\n".join([row] * grid[1])
        conversations[0]["content"] = conversations[0]["content"].replace("<image>", text)
    result = conversation_to_ids(conversations, tokenizer, llm_type, max_length)
    pixels = [transform(part) for part in images]
    result["pixel_values"] = [_patches_in_a_row(p, patch_size) for p in pixels]
    sizes = [[p.shape[1] // patch_size, p.shape[2] // patch_size] for p in pixels]
    result["tgt_sizes"] = torch.tensor(sizes, dtype=torch.int32) if sizes else []
    return result


def slice_image(image, max_slice_nums, scale_resolution, patch_size):
    """An overview, and as many slices as the area asks for; slices and overview differ in shape."""
    width, height = image.size
    wanted = min(math.ceil(width * height / scale_resolution**2), max_slice_nums)
    side = scale_resolution // patch_size * patch_size
    overview = image.resize((side, side))
    if wanted <= 1:
        return [overview], (0, 0)
    columns = max(c for c in range(1, wanted + 1) if wanted % c == 0 and c * c <= wanted * width / height)
    rows = wanted // columns
    tall = side + patch_size
    whole = image.resize((columns * side, rows * tall))
    parts = [
        whole.crop((c * side, r * tall, (c + 1) * side, (r + 1) * tall))
        for r in range(rows)
        for c in range(columns)
    ]
    return [overview, *parts], (columns, rows)


def _patches_in_a_row(pixels, patch_size):
    columns = torch.nn.functional.unfold(pixels, patch_size, stride=patch_size)
    columns = columns.view(pixels.shape[0], patch_size, patch_size, -1)
    return columns.transpose(2, 3).reshape(pixels.shape[0], patch_size, -1)
