"""The programs that must not notice vlmpatch: a text each, of what it is and its files."""

from __future__ import annotations

from pathlib import Path

from tests.lab import envs


def texts(folder: str) -> dict[str, Path]:
    return {path.stem: path for path in sorted(Path(__file__).with_name(folder).glob("*.txt"))}


PROGRAMS = texts("programs")
NEWEST = envs.NEWEST
OTHERS = ("tf445-ds0154", "tf457-ds0182", "tf523-ds0198")
WARM = ("torch", "transformers", "transformers.trainer")
# Of a stack, beside the programs that run anywhere: its own, and what is imported before they begin.
OWN = {
    "neighbours": (texts("neighbours"), ("torch", "transformers")),
    "trl024": (texts("trl"), (*WARM, "trl.trainer.grpo_trainer", "trl.trainer.rloo_trainer")),
    "swift341": (texts("swift"), (*WARM, "swift.llm", "swift.trainers")),
}
