"""Rows of a tiny checkpoint as axolotl reads them: an image is a part of the turn that shows it."""

from __future__ import annotations

from typing import Any

DATASET = {"ds_type": "json", "type": "chat_template", "split": "train"}  # what axolotl is told of them


def row_of(row: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [_turn(row, message) for message in row["messages"]]}


def _turn(row: dict[str, Any], message: dict[str, str]) -> dict[str, Any]:
    text = message["content"].removeprefix("<image>")
    shown = [{"type": "image", "path": path} for path in row["images"]] if text != message["content"] else []
    return {"role": message["role"], "content": [*shown, {"type": "text", "text": text}]}
