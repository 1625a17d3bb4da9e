"""Which runs of the script show what: the matrix, and one run for every patch that must be needed."""

from __future__ import annotations

from typing import Any

Cell = dict[str, Any]
ENGINES = ("zero2", "zero3", "ddp")
TUNINGS = ("lora_vision", "lora", "full", "llm_frozen")
DATA: tuple[Cell, ...] = (
    {"data": "many", "batch": 1},
    {"data": "few", "batch": 1},
    {"data": "many", "batch": 2},
)
KWARGS = ("own", "none", "reentrant")
# Without the patch, this is what the run ends in; what is silent has no text here.
NEEDED: dict[str, tuple[str, Cell]] = {
    "minicpmv-lost-typing-names": ("NameError: name 'List' is not defined", {}),
    "minicpmv-init-arguments": ("unexpected keyword argument 'init_vision'", {}),
    "minicpmv-missing-post-init": ("has no attribute 'all_tied_weights_keys'", {}),
    "minicpmv-inplace-embeddings": (
        "a view of a leaf Variable that requires grad is being used in an in-place operation",
        {"tuning": "llm_frozen"},
    ),
    "trainer-star-import-names": (r"NameError: name '\w+' is not defined", {}),
    "trainer-tokenizer-argument": ("unexpected keyword argument 'tokenizer'", {}),
    "trainer-use-apex": ("has no attribute 'use_apex'", {}),
    "trainer-save-safetensors": ("has no attribute 'save_safetensors'", {}),
    "trainer-training-step-signature": ("takes 3 positional arguments but 4 were given", {}),
    "chat-template-dict": ("RecursionError", {}),
    "renamed-training-flags": ("not used by the HfArgumentParser", {}),
}


def matrix(engines: tuple[str, ...] = ENGINES) -> list[Cell]:
    """Every engine, tuning and kind of batch; the three ways to say use_reentrant on the hardest batch."""
    cells: list[Cell] = []
    for engine in engines:
        for tuning in TUNINGS:
            for data in DATA:
                base = {"engine": engine, "tuning": tuning, **data}
                cells.append({**base, "checkpointing": False})
                hardest = data == DATA[0]
                cells += [{**base, "kwargs": kwargs} for kwargs in (KWARGS if hardest else KWARGS[:1])]
    return cells


def needed() -> list[Cell]:
    """One run without each patch whose absence ends in an error."""
    return [{**cell, "without": [name]} for name, (_, cell) in NEEDED.items()]
