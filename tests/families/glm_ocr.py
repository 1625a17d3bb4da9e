"""GLM-OCR, whose rotary embedding has to be said in sections."""

from __future__ import annotations

from pathlib import Path

from tests.families._shared import small
from tests.families._shared.sizes import GLM_ROPE


def make(folder: Path) -> int:
    return small.make("glm_ocr", folder, text=GLM_ROPE)
