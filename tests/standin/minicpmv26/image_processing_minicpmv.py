"""Slices of images for the stand-in, with the answers frameworks ask of MiniCPM-V's image processor."""

import math

import numpy as np
import torch
from PIL import Image
from transformers import AutoImageProcessor
from transformers.image_processing_utils import BaseImageProcessor, BatchFeature


class MiniCPMVBatchFeature(BatchFeature):
    """Lists of lists of tensors, which the base class cannot move."""

    def to(self, *args, **kwargs):
        def move(value):
            if isinstance(value, list):
                return [move(item) for item in value]
            return (
                value.to(*args, **kwargs) if torch.is_tensor(value) and value.is_floating_point() else value
            )

        return MiniCPMVBatchFeature({name: move(value) for name, value in self.items()})


class MiniCPMVImageProcessor(BaseImageProcessor):
    model_input_names = ["pixel_values"]  # noqa: RUF012

    def __init__(self, max_slice_nums=9, scale_resolution=448, patch_size=14, **kwargs):
        super().__init__(**kwargs)
        self.max_slice_nums = max_slice_nums
        self.scale_resolution = scale_resolution
        self.patch_size = patch_size
        self.image_feature_size = kwargs.pop("image_feature_size", 64)
        self.use_image_id = kwargs.pop("use_image_id", False)
        self.version = kwargs.pop("version", 2.6)

    def grid(self, size, max_slice_nums=None):
        """Columns and rows an image is cut into; none for a small one."""
        width, height = size
        wanted = math.ceil(width * height / self.scale_resolution**2)
        wanted = min(wanted, max_slice_nums or self.max_slice_nums)
        if wanted <= 1:
            return 0, 0
        columns = max(c for c in range(1, wanted + 1) if wanted % c == 0 and c * c <= wanted * width / height)
        return columns, wanted // columns

    def get_slice_image_placeholder(self, image_size, image_idx=0, max_slice_nums=None, use_image_id=None):
        columns, rows = self.grid(image_size, max_slice_nums)
        blank = "<unk>" * self.image_feature_size
        name = f"<image_id>{image_idx}</image_id>" if use_image_id or self.use_image_id else ""
        row = f"<slice>{blank}</slice>" * columns
        return f"{name}<image>{blank}</image>" + "\n".join([row] * rows)

    def preprocess(self, images, do_pad=True, max_slice_nums=None, return_tensors=None, **kwargs):
        batches = images if images and isinstance(images[0], list) else [images]
        pixels, sizes, shapes = [], [], []
        for batch in batches:
            parts = [part for image in batch for part in self._cut(image.convert("RGB"), max_slice_nums)]
            pixels.append([self._in_a_row(part) for part in parts])
            sizes.append([image.size for image in batch])
            shape = [[part.height // self.patch_size, part.width // self.patch_size] for part in parts]
            shapes.append(torch.tensor(shape, dtype=torch.int32).reshape(-1, 2))
        return MiniCPMVBatchFeature({"pixel_values": pixels, "image_sizes": sizes, "tgt_sizes": shapes})

    def _cut(self, image, max_slice_nums):
        side = self.scale_resolution // self.patch_size * self.patch_size
        columns, rows = self.grid(image.size, max_slice_nums)
        whole = image.resize((max(columns, 1) * side, max(rows, 1) * side), Image.Resampling.BICUBIC)
        yield image.resize((side, side), Image.Resampling.BICUBIC)
        for index in range(rows * columns):
            row, column = divmod(index, columns)
            yield whole.crop((column * side, row * side, (column + 1) * side, (row + 1) * side))

    def _in_a_row(self, part):
        pixels = torch.from_numpy(np.asarray(part).copy()).permute(2, 0, 1).float() / 127.5 - 1
        patches = pixels.unflatten(1, (-1, self.patch_size)).unflatten(3, (-1, self.patch_size))
        return patches.permute(0, 2, 1, 3, 4).flatten(2)


AutoImageProcessor.register("MiniCPMVImageProcessor", MiniCPMVImageProcessor)
