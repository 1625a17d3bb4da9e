"""Repository code in MiniCPM-o's manner: towers for images and for sounds, fed from one dictionary."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.families._shared.batches import save
from tests.families._shared.sizes import IMAGE, TEXT
from tests.families._shared.sounds import SOUND

HERE = Path(__file__).parent
SEES = HERE.parents[1] / "standin" / "minicpmv26" / "modeling_navit_siglip.py"
BANDS, FRAMES, PIECES, PATCH = 80, 32, 8, 14
QUERIES, SIDE = 4, 4  # tokens of a slice, patches on a side of it
AUDIO = {"num_mel_bins": BANDS, "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4}
AUDIO |= {"encoder_ffn_dim": 128, "max_source_positions": 64}
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "image_size": 8 * PATCH}


def make(folder: Path, cut: str = "") -> int:
    """Write the checkpoint; its code without ``cut``, which an earlier revision did not have."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(SEES, folder)
    shutil.copy(HERE / "configuration_minicpm.py", folder)
    code = (HERE / "modeling_minicpmo.py").read_text("utf-8")
    assert cut in code, f"the stand-in has no {cut!r}"
    (folder / "modeling_minicpmo.py").write_text(code.replace(cut, "") if cut else code, "utf-8")
    names = ("configuration_minicpm.MiniCPMOConfig", "modeling_minicpmo.MiniCPMO")
    configuration, modeling = (get_class_from_dynamic_module(name, str(folder)) for name in names)
    text = {**TEXT, "hidden_size": 128}  # a head of the resampler has 128
    config = configuration(vision_config=VISION, audio_config=AUDIO, query_num=QUERIES, **text)
    config.auto_map = dict(zip(("AutoConfig", "AutoModel"), names, strict=True))
    return save(modeling(config), folder, lambda: [row(number) for number in range(9)])


def row(number: int) -> dict[str, Any]:
    """One with an image and a sound, one with a sound, one with an image, and again."""
    import torch

    sees, hears = number % 3 != 1, number % 3 != 2
    ids = torch.randint(10, 100, (1, 5))
    image, sound = [], []
    if sees:
        image = [[ids.shape[1], ids.shape[1] + QUERIES]]
        ids = torch.cat([ids, torch.full((1, QUERIES), IMAGE), torch.randint(10, 100, (1, 4))], dim=1)
    if hears:
        sound = [[ids.shape[1], ids.shape[1] + PIECES]]
        ids = torch.cat([ids, torch.full((1, PIECES), SOUND), torch.randint(10, 100, (1, 6))], dim=1)
    data = {
        "input_ids": ids,
        "position_ids": torch.arange(ids.shape[1])[None],
        "pixel_values": [[torch.randn(3, PATCH, PATCH * SIDE**2)] * len(image)],
        "tgt_sizes": [torch.tensor([[SIDE, SIDE]]) if sees else []],
        "image_bound": [image],
        "audio_features": torch.randn(len(sound), BANDS, FRAMES),
        "audio_feature_lens": [torch.tensor([FRAMES] * len(sound))],
        "audio_bounds": [sound],
    }
    labels = ids.masked_fill((ids == IMAGE) | (ids == SOUND), -100)
    return {"data": data, "input_ids": ids, "labels": labels}
