"""A mixture of experts under ZeRO-3."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, inside, known, quote
from vlmpatch.tools.lint.launch_config import LaunchConfig
from vlmpatch.tools.lint.model import mixture

_LEAVES = ("mixtral", "qwen2_moe", "qwen3_moe")  # DeepSpeed gathers their blocks as a whole from 0.18 on


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    if launch.stage != 3 or not inside(around, "transformers", "<5.0.0.dev0"):
        return
    evidence = ""
    if around.model and around.model.experts:
        whole = around.model.kind in _LEAVES and inside(around, "deepspeed", ">=0.18.0.dev0")
        evidence = "" if whole else around.model.kind
    elif around.model is None and launch.model and mixture(launch.model.value):
        evidence = quote(launch.model)
    if evidence:
        title = around.say("Ranks that send tokens to different experts wait for each other.")
        fix = "deepspeed.utils.set_z3_leaf_modules(model, [TheSparseBlock])"
        yield known(around, "L12", "F27", title, evidence, fix)
