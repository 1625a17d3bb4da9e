"""MiniCPM-o's code of January 2025: a batch without a sound runs no tower for it, in training either."""

from __future__ import annotations

from pathlib import Path

from tests.families import minicpmo_repo

SILENCE = """        elif self.training and dummy:
            weight = self.apm.embed_positions.weight
            ran = self.apm(weight.new_zeros(SILENCE), output_hidden_states=True)
            return [self._heard(ran.hidden_states[self.audio_encoder_layer])]
"""


def make(folder: Path) -> int:
    return minicpmo_repo.make(folder, cut=SILENCE)
