"""What transformers lists for ``qwen2_5_omni``, which is made as its thinker."""

from __future__ import annotations

from tests.families.qwen2_5_omni import make as make
