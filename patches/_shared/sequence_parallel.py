"""DeepSpeed's sequence parallelism, as HF Trainer uses it."""

from __future__ import annotations

import sys
from typing import Any


def is_adapter(batches: Any) -> bool:
    """Whether it is DeepSpeed's adapter, which spreads a loader's rows over ranks."""
    ulysses = sys.modules.get("deepspeed.runtime.sequence_parallel.ulysses_sp")
    adapter = getattr(ulysses, "UlyssesSPDataLoaderAdapter", None)
    return adapter is not None and isinstance(batches, adapter)
