"""A checkpoint whose model comes as code with it, as from a repository on the hub."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

from tests.families._shared.batches import write
from tests.families._shared.sizes import IMAGE, TEXT

FAMILIES = Path(__file__).parents[1]


def with_own_code(
    folder: Path, name: str, prefix: str, vision: dict[str, Any], images: int, pieces: int
) -> int:
    import torch

    package = f"tests.families.{name}_repo"
    configuration = importlib.import_module(f"{package}.configuration_tiny_{name}")
    modeling = importlib.import_module(f"{package}.modeling_tiny_{name}")
    config = getattr(configuration, f"{prefix}Config")(text=TEXT, vision=vision, image_token=IMAGE)
    config.auto_map = {
        "AutoConfig": f"configuration_tiny_{name}.{prefix}Config",
        "AutoModel": f"modeling_tiny_{name}.{prefix}Model",
    }

    def pixels() -> dict[str, Any]:
        return {"pixel_values": torch.randn(images, 3, 28, 28)}

    size = write(getattr(modeling, f"{prefix}Model")(config), folder, pixels, pieces)
    for source in (FAMILIES / f"{name}_repo").glob(f"*_tiny_{name}.py"):
        shutil.copy(source, folder)
    return size
