"""A judge of answers that says yes or no by the text alone: rewards differ."""

from __future__ import annotations

from typing import Any


class LatexExtractionConfig:
    """How answers are found in a text; all of it is the answer here."""

    def __init__(self, **more: Any) -> None:
        self.more = more


def parse(text: str, *arguments: Any, **more: Any) -> str:
    return text


def verify(gold: str, answer: str, *arguments: Any, **more: Any) -> bool:
    return (len(gold) + len(answer) + sum(map(ord, gold + answer))) % 2 == 0
