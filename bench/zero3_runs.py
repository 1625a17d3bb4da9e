"""One ZeRO-3 training of ``bench.zero3_gather_ranks``, in words; imports nothing of the stack."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

NOTHING_AHEAD = {
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 0,
    "stage3_param_persistence_threshold": 0,
}


@dataclass(frozen=True)
class Run:
    """One training."""

    kind: str = "qwen2_vl"  # or "qwen2_5_vl", or "blocks": see ``bench.zero3_blocks``
    tuning: str = "lora"  # or "full", or "to_save": LoRA with modules_to_save
    checkpointing: str = "off"  # or "reentrant", "nonreentrant"
    patched: bool = False
    # Of "blocks": "unused", "embedding", "table", "nested", "exception", "retain", "eval", "save",
    # "save_alone", "uneven".
    scenario: str = ""
    forwards: int = 1
    accumulation: int = 1
    steps: int = 2
    backward: str = "engine"  # or "loss": loss.backward()
    early_stop: bool = True
    zero: dict[str, Any] = field(default_factory=lambda: dict(NOTHING_AHEAD))
    size: str = "small"
    world: int = 2
    device: str = "cpu"
    dtype: str = "float32"
    tokens: int = 32
    measure: bool = True  # count gathers; off where only time matters
    limit: float = 300.0  # seconds after which its ranks are killed; ten times as many on a GPU

    @property
    def id(self) -> str:
        plain = Run()
        said = [
            f"{f.name}={getattr(self, f.name)}"
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != getattr(plain, f.name)
        ]
        return ",".join(said).replace("/", "_").replace(" ", "")[:200] or "plain"
